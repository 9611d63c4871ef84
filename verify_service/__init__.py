"""The target model as a service: it decides every token."""
