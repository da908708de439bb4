"""The bill of materials in the package: it names the crates that the files contain."""

import base64
import hashlib
import importlib.metadata
import json
import re
from pathlib import Path

import pytest

import onebuf as ob

PACKAGE = Path(ob.__file__).parent
LOCK = Path(__file__).resolve().parents[3] / "Cargo.lock"
# Messages of panics name the source file, and thereby the crate.
IN_FILES = re.compile(rb"/(?:registry/src/[^/\0]+|vendor)/([A-Za-z0-9_-]+?)-(\d+\.\d+\.\d+[A-Za-z0-9.+-]*)/")


def recorded():
    """The package's record of the bill."""
    [entry] = [one for one in importlib.metadata.files("onebuf") if one.parent.name == "sboms"]
    return entry


@pytest.fixture(scope="module")
def bill():
    return json.loads(recorded().read_text())


@pytest.fixture(scope="module")
def crates(bill):
    return {(one["name"], one["version"]): one for one in bill["components"]}


@pytest.fixture(scope="module")
def locked():
    """Cargo.lock: the checksum of each crate, and the names of what it depends on, also for tests."""
    found = {}
    for part in LOCK.read_text().split("[[package]]\n")[1:]:
        fields = dict(re.findall(r'^(\w+) = "(.*)"$', part, re.MULTILINE))
        found[fields["name"], fields["version"]] = fields.get("checksum"), re.findall(r'^ "(\S+).*",$', part, re.MULTILINE)
    return found


def test_the_record_has_it():
    entry = recorded()
    assert entry.name == "onebuf.cyclonedx.json" and entry.parent.parent.suffix == ".dist-info"
    digest = base64.urlsafe_b64encode(hashlib.sha256(entry.read_binary()).digest()).rstrip(b"=").decode()
    assert (entry.hash.mode, entry.hash.value) == ("sha256", digest)


def test_it_is_a_bill_of_this_version(bill):
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    about = bill["metadata"]["component"]
    assert (about["name"], about["version"]) == ("onebuf", importlib.metadata.version("onebuf"))


@pytest.mark.parametrize("name", ["_onebuf.abi3.so", "bin/onebuf"])
def test_every_crate_that_the_file_names_is_in_it(crates, name):
    found = {(one.decode(), version.decode()) for one, version in IN_FILES.findall((PACKAGE / name).read_bytes())}
    assert {"rustfft", "serde_json"} <= {one for one, _ in found}
    linked = {key for key, one in crates.items() if one["scope"] == "required"}
    assert found <= linked, found - linked
    # The control: a crate that is missing is found.
    assert not found <= linked - {next(iter(found))}


def test_every_crate_is_locked_with_its_checksum(crates, locked):
    assert len(crates) > 100
    for key, one in crates.items():
        own = key[0] == "onebuf" or key[0].startswith("onebuf-")
        assert locked[key][0] == (None if own else one["hashes"][0]["content"]), key
        assert own == ("hashes" not in one) and one["licenses"][0]["expression"], key
        assert one["purl"] == f"pkg:cargo/{key[0]}@{key[1].replace('+', '%2B')}"


def test_what_only_tests_need_is_absent(crates, locked):
    for name in ("cbindgen", "criterion", "proptest", "shuttle", "tempfile", "wgpu"):
        assert name in {one for one, _ in locked}, name
        assert name not in {one for one, _ in crates}, name
    scopes = {one: about["scope"] for (one, _), about in crates.items()}
    assert scopes["serde_derive"] == "excluded" and scopes["serde_core"] == "required"


def test_dependencies_are_those_that_are_locked(bill, crates, locked):
    names = {one["bom-ref"]: key for key, one in crates.items()}
    wheel, *rows = bill["dependencies"]
    assert {names[one][0] for one in wheel["dependsOn"]} == {"onebuf-python", "onebuf-cli"}
    assert len(rows) == len(crates)
    for row in rows:
        assert {names[one][0] for one in row["dependsOn"]} <= set(locked[names[row["ref"]]][1]), row["ref"]
    assert sum(len(row["dependsOn"]) for row in rows) > len(crates)


def test_it_tells_nothing_of_the_machine(bill):
    text = json.dumps(bill)
    assert not re.search(r"file:|path\+|/(?:home|root|work|tmp|usr)/|timestamp", text)
