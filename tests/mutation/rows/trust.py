"""Trust: keys, policies, revocation, signatures beside what they are of, bundles."""

from tests.mutation.table import Mutant

KEYS = "tests/artifact_store/trust/test_keys.py"
JUDGE = "tests/artifact_store/trust/test_judge.py"
TAMPER = "tests/artifact_store/trust/test_tampering.py"
BUNDLE = "tests/artifact_store/bundle/test_bundle.py"
COMMANDS = "tests/precast/cli/test_trust_commands.py"

ROWS = (
    Mutant(
        "keys of small order are keys",
        "artifact_store/trust/keys.py",
        'if int.from_bytes(raw, "little") % 2**255 in _SMALL_ORDER:',
        'if int.from_bytes(raw, "little") == 2**255:',
        KEYS,
    ),
    Mutant("a private key is everybody's", "artifact_store/trust/keys.py", "os.O_NOFOLLOW, 0o600)", "os.O_NOFOLLOW, 0o644)", KEYS),
    Mutant(
        "another key's signature counts",
        "artifact_store/trust/keys.py",
        "if signature.key != self.id or len(signature.value) != SIGNATURE_BYTES:",
        "if len(signature.value) != SIGNATURE_BYTES:",
        KEYS,
    ),
    Mutant(
        "signatures need not match",
        "artifact_store/trust/judge.py",
        '"trusted" if key.holds(statement, signature) else "wrong"',
        '"trusted"',
        f"{JUDGE} {TAMPER}",
    ),
    Mutant(
        "what a revoked key signed counts",
        "artifact_store/trust/keyring.py",
        "if id_ not in revoked}",
        "if id_}",
        JUDGE,
    ),
    Mutant(
        "a revoked artifact comes in",
        "artifact_store/trust/judge.py",
        "if revoked := _revoked(statement, keyring):",
        "if (revoked := _revoked(statement, keyring)) and not signatures:",
        JUDGE,
    ),
    Mutant("signed by whomever", "artifact_store/trust/judge.py", "if any(one.key in wanted for one in good):", "if good:", JUDGE),
    Mutant(
        "a keyring that cannot be read is empty",
        "artifact_store/trust/judge.py",
        '            return f"it cannot be told who signed it: {error}"\n',
        '            return "" if self.demand.kind == "any" else str(error)\n',
        JUDGE,
    ),
    Mutant(
        "what came from elsewhere is signed here",
        "artifact_store/store.py",
        "        if manifest.origin.kind == PROCESS:\n",
        "        if manifest.origin:\n",
        COMMANDS,
    ),
    Mutant(
        "signatures of another build are this one's",
        "artifact_store/signature_files.py",
        "    if of != checksum:\n",
        "    if not of:\n",
        COMMANDS,
    ),
    Mutant(
        "a local store's policy is not asked",
        "artifact_store/trust/trusted.py",
        "return self.judge is not None and origin.kind != PROCESS",
        "return False",
        TAMPER,
    ),
    Mutant(
        "a bundle's checksum is not compared",
        "artifact_store/bundle/format.py",
        "    if held != state.digest():\n",
        "    if not held:\n",
        TAMPER,
    ),
    Mutant(
        "a bundle's blobs are not compared",
        "artifact_store/bundle/format.py",
        "            if digest(data) != name:\n",
        "            if not data:\n",
        BUNDLE,
    ),
    Mutant(
        "blobs that nothing names are taken",
        "artifact_store/bundle/format.py",
        "if named != set(index.blobs) or",
        "if named - set(index.blobs) or",
        BUNDLE,
    ),
    Mutant(
        "what is refused is taken in",
        "artifact_store/bundle/transfer.py",
        "            if done.refused:\n                return done\n",
        "",
        BUNDLE,
    ),
)
