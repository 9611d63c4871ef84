"""compose.yaml is valid, and what it names exists: flags, addresses, volumes, probes."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from support.compose import ROOT, Service, default_profile, read_compose, read_services

from foredraft.cli.main import build_parser

PROFILES = {
    "cpu": {"gateway", "verify", "draft"},
    "gpu": {"gateway", "verify-gpu", "draft-gpu"},
}
SERVICES = sorted(set().union(*PROFILES.values()))


def listen_port(service: Service) -> str:
    (address,) = re.findall(r" --(?:grpc-)?listen=0\.0\.0\.0:(\d+)", " ".join(service.command))
    return address


def test_it_follows_the_specification() -> None:
    """The compose specification's own schema; the checker carries a copy."""
    command = ["check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "compose.yaml"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_default_profile_needs_no_gpu() -> None:
    assert default_profile() == "cpu"
    assert not any("deploy" in read_services()[name].raw for name in PROFILES["cpu"])


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_is_three_processes_that_find_each_other(profile: str) -> None:
    services = read_services()
    chosen = {name: s for name, s in services.items() if s.in_profile(profile)}
    assert set(chosen) == PROFILES[profile]
    gateway = " ".join(chosen["gateway"].command)
    reached = dict(re.findall(r"--(?:verify|draft)=([\w-]+):(\d+)", gateway))
    assert set(reached) == {"verify", "draft"}
    for host, port in reached.items():
        (worker,) = (s for s in chosen.values() if host in s.names())
        assert listen_port(worker) == port


@pytest.mark.parametrize("name", SERVICES)
def test_a_command_is_understood(name: str) -> None:
    service = read_services()[name]
    python, module, package, *arguments = service.command
    assert (python, module, package) == ("python", "-m", "foredraft")
    assert build_parser().parse_args(arguments).role == name.removesuffix("-gpu")


@pytest.mark.parametrize("name", SERVICES)
def test_a_probe_is_a_program_of_the_image_and_asks_its_own_process(name: str) -> None:
    service = read_services()[name]
    kind, python, module, package, *arguments = service.probe
    assert (kind, python, module, package) == ("CMD", "python", "-m", "foredraft")
    args = build_parser().parse_args(arguments)
    assert args.address == f"127.0.0.1:{listen_port(service)}"
    limit = float(service.raw["healthcheck"]["timeout"].removesuffix("s"))
    assert args.timeout < limit, "the probe is killed before it can say what is wrong"


def test_no_container_waits_for_another_to_start() -> None:
    assert not any("depends_on" in raw for raw in read_compose({})["services"].values())


def test_only_this_machine_reaches_the_published_ports() -> None:
    services = read_compose({})["services"]
    ports = {name: raw["ports"] for name, raw in services.items() if "ports" in raw}
    assert set(ports) == {"gateway", "traces"}
    assert all(port.startswith("127.0.0.1:") for listed in ports.values() for port in listed)


def test_every_worker_keeps_the_model_in_the_same_volume() -> None:
    content = read_compose({})
    for service in read_services().values():
        sources = {volume.split(":")[0]: volume.split(":")[1] for volume in service.raw["volumes"]}
        assert set(sources) <= set(content["volumes"])
        assert service.environment["FOREDRAFT_CACHE"] == sources["cache"]


def test_both_workers_meet_in_a_volume_of_their_own() -> None:
    services = read_services()
    for names in (("verify", "draft"), ("verify-gpu", "draft-gpu")):
        verify, draft = (
            build_parser().parse_args(services[name].command[3:]).lane for name in names
        )
        assert verify == draft
        for name in names:
            volumes = dict(volume.split(":")[:2] for volume in services[name].raw["volumes"])
            assert str(verify.parent) == volumes["lane"]


def test_no_value_is_a_secret() -> None:
    for service in read_services().values():
        assert not [n for n in service.environment if re.search("KEY|TOKEN|SECRET|PASSWORD", n)]


def test_a_gpu_worker_differs_by_its_image_and_its_device_only() -> None:
    services = read_services()
    for name in ("verify", "draft"):
        plain, gpu = services[name], services[f"{name}-gpu"]
        assert (plain.command, plain.environment) == (gpu.command, gpu.environment)
        (device,) = gpu.raw["deploy"]["resources"]["reservations"]["devices"]
        assert device["capabilities"] == ["gpu"] and device["device_ids"] == ["0"]
        assert set(plain.raw) ^ set(gpu.raw) == {"deploy", "networks"}


def test_the_collectors_pipelines_use_what_is_defined() -> None:
    content = read_compose({})
    (mount,) = content["services"]["collector"]["volumes"]
    source, target, _ = mount.split(":")
    assert content["services"]["collector"]["command"] == [f"--config={target}"]
    config = yaml.safe_load((ROOT / source).read_text("utf-8"))
    for pipeline in config["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            assert set(names) == set(config[kind])
    host, port = config["exporters"]["otlp"]["endpoint"].split(":")
    assert host in content["services"] and port == "4317"


def test_the_image_is_built_from_files_that_are_sent_along() -> None:
    """Everything the wheel needs passes .dockerignore."""
    ignore = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    sent = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    wanted = {*packages, "pyproject.toml", "constraints.txt", "README.md"}
    assert wanted <= sent
    assert all((ROOT / name).exists() for name in sent)
