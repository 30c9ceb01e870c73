"""examples/deploy: files have the form that their readers want, and every precast command in them is one that precast takes and runs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from precast.artifact_store import Store
from precast.artifact_store.trust.keyring import read
from precast.artifact_store.trust.keys import to_pem
from precast.cli.main import COMMANDS, main
from tests.artifact_store.sample import complete, make
from tests.artifact_store.trust.known_keys import known_key
from tests.support.needs import needs
from tests.support.servers import Server, registry

yaml = needs("yaml")
jsonschema = needs("jsonschema")
__all__ = ["registry"]
FOLDER = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists()) / "examples" / "deploy"
FILES = ("Dockerfile", "kubernetes.yaml", "github-actions.yml")


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text("utf-8")))


def text(**more: Any) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, **more}


def table(required: str = "", /, **fields: Any) -> dict[str, Any]:
    """A map of these fields and no others; a slip in a field's name is found."""
    return {"type": "object", "properties": fields, "required": required.split(), "additionalProperties": False}


def several(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1}


TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}

# -- Kubernetes: the few kinds that are used, field by field as in its API reference

QUANTITY = text(pattern=r"^[0-9.]+(m|Ki|Mi|Gi)?$")
AMOUNTS = table(cpu=QUANTITY, memory=QUANTITY)
LABEL = text(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", maxLength=63)
KEY_PATHS = several(table("key path", key=text(), path=text()))
CONTAINER = table(
    "name image",
    name=LABEL,
    image=text(),
    command=several(text()),
    args=several(text()),
    env=several(table("name value", name=text(pattern=r"^[A-Z_]+$"), value={"type": "string"})),
    ports=several(table("containerPort", name=LABEL, containerPort={"type": "integer", "minimum": 1, "maximum": 65535})),
    volumeMounts=several(table("name mountPath", name=LABEL, mountPath=text(pattern="^/"), readOnly={"type": "boolean"})),
    resources=table(requests=AMOUNTS, limits=AMOUNTS),
    readinessProbe=table("tcpSocket", tcpSocket=table("port", port=text()), periodSeconds={"type": "integer", "minimum": 1}),
    securityContext=table(allowPrivilegeEscalation={"type": "boolean"}, readOnlyRootFilesystem={"type": "boolean"}),
)
VOLUME = table(
    "name",
    name=LABEL,
    emptyDir=table(sizeLimit=QUANTITY),
    configMap=table("name", name=LABEL),
    secret=table("secretName", secretName=LABEL, items=KEY_PATHS, optional={"type": "boolean"}),
)
NUMBER = {"type": "integer", "minimum": 0}
POD = table(
    "containers",
    securityContext=table(runAsNonRoot={"type": "boolean"}, runAsUser=NUMBER, runAsGroup=NUMBER, fsGroup=NUMBER),
    initContainers=several(CONTAINER),
    containers=several(CONTAINER),
    volumes=several(VOLUME),
)
METADATA = table("name", name=LABEL, labels=TEXTS)
KINDS = {
    ("v1", "ConfigMap"): table("metadata data", metadata=METADATA, data=TEXTS),
    ("apps/v1", "Deployment"): table(
        "metadata spec",
        metadata=METADATA,
        spec=table(
            "selector template",
            replicas=NUMBER,
            selector=table("matchLabels", matchLabels=TEXTS),
            template=table("metadata spec", metadata=table("labels", labels=TEXTS), spec=POD),
        ),
    ),
    ("v1", "Service"): table(
        "metadata spec",
        metadata=METADATA,
        spec=table("selector ports", selector=TEXTS, ports=several(table("port", name=LABEL, port=NUMBER, targetPort=text()))),
    ),
}

# -- GitHub Actions: as its workflow syntax says, as far as it is used

SECONDARY = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
STEP = {
    **table("", name=text(), uses=text(pattern=r"^[\w.-]+/[\w./-]+@v\d+"), run=text(), env=SECONDARY, **{"with": SECONDARY, "if": text()}),
    "oneOf": [{"required": ["uses"]}, {"required": ["run"]}],
}
PERMISSIONS = {"type": "object", "additionalProperties": {"enum": ["read", "write", "none"]}}
JOB = table(
    "runs-on steps",
    env=SECONDARY,
    steps=several(STEP),
    permissions=PERMISSIONS,
    **{"runs-on": text(), "timeout-minutes": {"type": "integer", "minimum": 1}},
)
WORKFLOW = table(
    "name on jobs",
    name=text(),
    on={"type": "object", "additionalProperties": {"type": ["object", "null"]}},
    permissions=PERMISSIONS,
    concurrency=table("group", group=text()),
    jobs={"type": "object", "additionalProperties": JOB, "minProperties": 1},
)


def workflow() -> dict[str, Any]:
    (found,) = documents("github-actions.yml")
    return {"on" if name is True else name: value for name, value in found.items()}  # YAML 1.1 reads `on` as a truth value


def test_the_workflow_has_the_form_of_one() -> None:
    jsonschema.Draft202012Validator(WORKFLOW).validate(workflow())


@pytest.mark.parametrize("document", documents("kubernetes.yaml"), ids=lambda document: document["kind"])
def test_the_manifest_has_the_form_of_its_kinds(document: dict[str, Any]) -> None:
    kind = KINDS[document["apiVersion"], document["kind"]]
    whole = {**kind, "properties": {**kind["properties"], "apiVersion": text(), "kind": text()}}
    jsonschema.Draft202012Validator(whole).validate(document)


def test_the_manifest_fits_together() -> None:
    settings, deployment, service = documents("kubernetes.yaml")
    spec = deployment["spec"]["template"]["spec"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["trust"]["configMap"]["name"] == settings["metadata"]["name"]
    for container in (*spec["initContainers"], *spec["containers"]):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys()
    (init,), (server,) = spec["initContainers"], spec["containers"]
    assert value(init, "PRECAST_STORE") in server["args"] and init["image"] == server["image"]
    ports = {port["name"] for port in server["ports"]}
    assert server["readinessProbe"]["tcpSocket"]["port"] in ports and service["spec"]["ports"][0]["targetPort"] in ports


def value(container: dict[str, Any], name: str) -> str:
    return next(str(item["value"]) for item in container["env"] if item["name"] == name)


def test_the_keyrings_are_keyrings_and_the_same(tmp_path: Path) -> None:
    (tmp_path / "trust").write_text(documents("kubernetes.yaml")[0]["data"]["trust"])
    assert read(tmp_path / "trust") == read(FOLDER / "trust") and read(FOLDER / "trust").named("ci")


# -- the Dockerfile


def stages() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Stage -> the stage that it begins from, and its instructions."""
    lines = (FOLDER / "Dockerfile").read_text("utf-8").splitlines()
    source = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    found: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    own: list[tuple[str, str]] = []
    for line in filter(None, source.splitlines()):
        verb, _, rest = line.partition(" ")
        if verb == "FROM":
            base, word, name = rest.split()
            assert word == "AS"
            own = []
            found[name] = (base, own)
        else:
            own.append((verb, rest.strip()))
    return found


VERBS = {"RUN", "COPY", "ENV", "WORKDIR", "USER", "CMD", "EXPOSE", "ARG"}


def test_what_serves_has_no_compiler_and_no_root() -> None:
    found = stages()
    assert [name for name in found] == ["base", "build", "thin", "baked"]
    assert all(verb in VERBS for _, instructions in found.values() for verb, _ in instructions)
    for name in ("thin", "baked"):
        line: list[tuple[str, str]] = []
        at = name
        while at in found:
            at, line = found[at][0], [*found[at][1], *line]
        assert not any("g++" in rest or "apt-get" in rest for _, rest in line)
        assert [rest for verb, rest in line if verb == "USER"][-1] == "app"
        assert json.loads(next(rest for verb, rest in line if verb == "CMD"))[:2] == ["python", "server.py"]
    copied = [rest for _, instructions in found.values() for verb, rest in instructions if verb == "COPY" and rest.startswith("--from=")]
    assert [re.findall(r"--from=(\S+)", rest)[0] for rest in copied] == ["build"]
    root = FOLDER.parents[1]
    sources = [rest.split()[0] for _, instructions in found.values() for verb, rest in instructions if verb == "COPY" and "--" not in rest]
    assert all((root / source).exists() for source in sources)


# -- every command


def scripts(name: str) -> Iterator[str]:
    if name == "Dockerfile":
        yield from (re.sub(r"--mount=\S+", "", rest) for _, own in stages().values() for verb, rest in own if verb == "RUN")
    elif name == "github-actions.yml":
        yield from (step["run"] for job in workflow()["jobs"].values() for step in job["steps"] if "run" in step)
    else:
        spec = documents(name)[1]["spec"]["template"]["spec"]
        yield from (shlex.join(container["command"]) for container in spec["initContainers"])


def commands(name: str) -> list[list[str]]:
    """The precast commands of a file, in words."""
    parts = (part for script in scripts(name) for part in re.split(r"&&|\|\||;|\n", script.replace("\\\n", " ")))
    words = (shlex.split(part, comments=True) for part in parts)
    return [line for line in words if line[:1] == ["precast"]]


@pytest.mark.parametrize("name", FILES)
def test_every_precast_command_is_one(name: str) -> None:
    found = commands(name)
    assert found, "no command of precast in it: the search is wrong, or the example"
    assert sum(script.count("precast ") for script in scripts(name)) == len(found)
    for _, verb, *words in found:
        assert verb in COMMANDS
        command = main.get_command(click.Context(main), verb)
        assert command is not None
        command.make_context(verb, words, parent=click.Context(main)).close()  # raises where the command would not take them


def test_a_command_with_a_slip_is_noticed() -> None:
    command = main.get_command(click.Context(main), "pull")
    assert command is not None
    with pytest.raises(click.UsageError, match="No such option"):
        command.make_context("pull", ["oci://x/y", "--trusted", "ci"], parent=click.Context(main))


def test_what_the_workflow_sends_the_init_container_fetches(registry: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two commands as they stand there, with a registry of this machine in place of theirs."""
    needs("oras")
    key = known_key("ci")
    store = Store.open(tmp_path / "built")
    for number, target in enumerate(("cpu:x86-64-v3", "cpu:x86-64-v4", "cuda:sm_90")):
        store.put(*make(number, target=target))
    (tmp_path / "trust").write_text(f"{key.public.line()}\n")
    push = next(line for line in commands("github-actions.yml") if line[1] == "push" and line[2].endswith("stable"))[1:]
    at = push.index("--build")
    del push[at : at + 2]  # the artifacts of this test are of no build file
    known = {"$ARTIFACTS": f"{registry.url}/team/artifacts", "$PRECAST_STORE": str(store.root)}
    for name, meaning in known.items():
        push = [word.replace(name, meaning) for word in push]
    monkeypatch.setenv("PRECAST_SIGNING_KEY", to_pem(key).decode())
    done = CliRunner().invoke(main, push)
    assert done.exit_code == 0 and "Moved 2 artifacts" in done.stderr, done.output
    monkeypatch.delenv("PRECAST_SIGNING_KEY")
    (init,) = documents("kubernetes.yaml")[1]["spec"]["template"]["spec"]["initContainers"]
    for item in init["env"]:
        monkeypatch.setenv(item["name"], item["value"])
    monkeypatch.setenv("PRECAST_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PRECAST_TRUST", str(tmp_path / "trust"))
    pull = [word.replace("oci://registry.example.org", registry.url) for word in init["command"][1:]]
    done = CliRunner().invoke(main, pull)
    assert done.exit_code == 0, done.output
    came = Store.open(tmp_path / "store")
    assert sorted(manifest.target for manifest in came.manifests()) == ["cpu:x86-64-v3", "cpu:x86-64-v4"]
    assert all(complete(came, manifest) for manifest in came.manifests())
