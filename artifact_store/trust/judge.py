"""Trust policies: `any`, `signed` or `by:<key>`, and the judge that decides by one of them and a keyring what may come in from a tier.

| policy | what it accepts |
|---|---|
| `any` | everything whose digests hold, but what is revoked and what bears a signature that does not match |
| `signed` | what a key of the keyring signed |
| `by:ci,release` | what one of these keys of the keyring signed, by name or id |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, assert_never

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.trust.keyring import Files, Keyring
from precast.artifact_store.trust.keys import KeyProblem, require_cryptography
from precast.artifact_store.trust.signatures import Signature

MOST_SIGNATURES = 16
"""More of one document are not looked at."""


@dataclass(frozen=True)
class Demand:
    """A policy, parsed. `keys`: names or ids of those that `by:` lists."""

    kind: Literal["any", "signed", "by"]
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"by:{','.join(self.keys)}" if self.kind == "by" else self.kind


ANY, SIGNED = Demand("any"), Demand("signed")


def parse_demand(text: str, where: str = "trust policy") -> Demand:
    """The policy that a setting names. Raises StoreError: a policy with a slip in it must not accept anything."""
    text = text.strip()
    if text in ("any", "signed"):
        return ANY if text == "any" else SIGNED
    head, colon, names = text.partition(":")
    keys = tuple(name.strip() for name in names.split(","))
    if head == "by" and colon and all(map(layout.is_label, keys)):
        return Demand("by", keys)
    raise StoreError(f"{where}: {text[:80]!r} is none of `any`, `signed`, `by:<name or id of a key>`")


@dataclass(frozen=True)
class Signed:
    """Who signed a document. `name`: of the key in the keyring, "" where it is unknown.

    `state`: "trusted": the signature holds and the key is in the keyring; "unknown": nobody here knows the key, so that the signature says
    nothing; "revoked": it was taken back; "wrong": the key is trusted and did not sign this.
    """

    key: str
    name: str
    state: Literal["trusted", "unknown", "revoked", "wrong"]

    def __str__(self) -> str:
        called = f"{self.name} ({self.key})" if self.name else f"key {self.key}"
        return called if self.state == "trusted" else f"{called}, {_STATES[self.state]}"


_STATES = {"unknown": "unknown here", "revoked": "revoked", "wrong": "whose signature does not match"}


def who_signed(statement: bytes, signatures: tuple[Signature, ...], keyring: Keyring) -> list[Signed]:
    """Each signature, judged by itself. Raises KeyProblem where signatures cannot be checked at all."""
    return list(_looked_at(statement, signatures[:MOST_SIGNATURES], keyring))


def _looked_at(statement: bytes, signatures: tuple[Signature, ...], keyring: Keyring) -> Iterator[Signed]:
    for signature in signatures:
        key = keyring.keys.get(signature.key)
        if signature.key in keyring.revoked_keys:
            yield Signed(signature.key, keyring.revoked_keys[signature.key], "revoked")
        elif key is None:
            yield Signed(signature.key, "", "unknown")
        else:
            yield Signed(key.id, key.name, "trusted" if key.holds(statement, signature) else "wrong")


class KeyringJudge:
    """`signatures.Judge` by a policy and a keyring, which is read when it is needed, and again when its files change."""

    def __init__(self, demand: Demand, keyring: Callable[[], Keyring] | None = None) -> None:
        self.demand = demand
        self._keyring = keyring or Files()

    def __repr__(self) -> str:
        return f"<KeyringJudge {self.demand}>"

    def problem(self, signatures: bool = True) -> str:
        """Why signatures cannot be checked at all, whatever they are; empty where they can. `signatures`: there are some."""
        try:
            self._keyring()
            if signatures:
                require_cryptography()
        except KeyProblem as error:
            return str(error)
        return ""

    def refusal(self, statement: bytes, signatures: tuple[Signature, ...]) -> str:
        """Why a document may not come in, as the end of a sentence that begins with the document; empty where it may."""
        try:
            keyring = self._keyring()
            if revoked := _revoked(statement, keyring):
                return f"it was revoked here ({revoked}): build it again, and remove this one"
            signed = who_signed(statement, signatures, keyring)
        except KeyProblem as error:
            return f"it cannot be told who signed it: {error}"
        return self._why_not(signed, keyring)

    def _why_not(self, signed: list[Signed], keyring: Keyring) -> str:
        good = [one for one in signed if one.state == "trusted"]
        match self.demand.kind:
            case "any":
                bad = [one for one in signed if one.state in ("revoked", "wrong")]
                return _why_bad(bad) if bad and not good else ""
            case "signed":
                return "" if good else _why_none(signed)
            case "by":
                wanted = {id_ for name in self.demand.keys for id_ in keyring.named(name)}
                if not wanted:
                    unknown = " or ".join(self.demand.keys)
                    return f"only {unknown} may sign it, and no such key is trusted here: `precast trust add KEYFILE`"
                if any(one.key in wanted for one in good):
                    return ""
                if good:
                    return f"it is signed by {good[0]}, and only {' or '.join(self.demand.keys)} may sign what comes from there"
                return _why_none(signed)
            case other:
                assert_never(other)


def judge_for(policy: str, where: str = "trust policy", keyring: Callable[[], Keyring] | None = None) -> KeyringJudge:
    """The judge for a policy as settings write it. Raises StoreError."""
    return KeyringJudge(parse_demand(policy, where), keyring)


def _revoked(statement: bytes, keyring: Keyring) -> str:
    """What is revoked of the ids and checksums that a statement names."""
    if not keyring.revoked_artifacts:
        return ""
    named = (line.decode("ascii", "replace") for line in statement.split(b"\n"))
    return next((f"{keyring.revoked_artifacts[line]} {line[:12]}…" for line in named if line in keyring.revoked_artifacts), "")


def _why_none(signed: list[Signed]) -> str:
    """Why no signature counts."""
    if not signed:
        return (
            "it is not signed, and only what a trusted key signed is accepted from there: let the build sign it (PRECAST_SIGNING_KEY), "
            "or `precast sign` it; trust=any accepts it as it is"
        )
    if bad := [one for one in signed if one.state != "unknown"]:
        return _why_bad(bad)
    keys = " and ".join(one.key for one in signed)
    return (
        f"it is signed by key {keys}, which is unknown here: get the key's line from whoever holds it, and if it is theirs "
        "`precast trust add 'precast-ed25519 … NAME'`"
    )


def _why_bad(bad: list[Signed]) -> str:
    wrong = [one for one in bad if one.state == "wrong"]
    if wrong:
        who = f"{wrong[0].name} ({wrong[0].key})"
        return f"the signature of {who} does not match: it was changed after it was signed, or damaged; do not use it"
    return f"it is signed by {bad[0].name} ({bad[0].key}), which was revoked here: build it again and sign it with another key"
