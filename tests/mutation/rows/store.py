"""The store: order and sync of writes, digests, quarantine, leases, the index, pruning, manifests, keys of guards."""

from tests.mutation.table import Mutant

STORE = "tests/artifact_store/test_store.py"
WRITES = "tests/artifact_store/test_writes.py"
LEASES = "tests/artifact_store/test_leases.py"
PRUNE = "tests/artifact_store/test_prune.py"
MANIFEST = "tests/artifact_store/test_manifest.py"
VERIFY = "tests/artifact_store/test_verify.py"
INDEX = "tests/artifact_store/test_index.py"
TRUST = "tests/artifact_store/test_trust.py"

ROWS = (
    Mutant(
        "the manifest is written before the blobs",
        "artifact_store/store.py",
        """            for name in manifest.blobs:
                tier.put_new(layout.blob_name(name), blobs[name])
            signature_files.keep(self._entries, tier, file, manifest.checksum, given)
            tier.put(file, manifest.to_bytes())
""",
        """            signature_files.keep(self._entries, tier, file, manifest.checksum, given)
            tier.put(file, manifest.to_bytes())
            for name in manifest.blobs:
                tier.put_new(layout.blob_name(name), blobs[name])
""",
        WRITES,
    ),
    Mutant(
        "blobs that a prune took are not put again",
        "artifact_store/store.py",
        "if tier.stamp(layout.blob_name(name)) is None:",
        "if False:",
        PRUNE,
    ),
    Mutant(
        "a blob of the right size and another content is put",
        "artifact_store/store.py",
        "if name not in blobs or len(blobs[name]) != size or digest(blobs[name]) != name:",
        "if name not in blobs or len(blobs[name]) != size:",
        WRITES,
    ),
    Mutant(
        "a blob's digest is not checked when it is read",
        "artifact_store/store.py",
        "if digest(data) != digest_:\n            self._entries",
        "if not data:\n            self._entries",
        STORE,
    ),
    Mutant(
        "a blob that changed is not checked again",
        "artifact_store/store.py",
        "if stamp is None or self._verified.get(digest_) != stamp:",
        "if stamp is None or digest_ not in self._verified:",
        STORE,
    ),
    Mutant(
        "an artifact is complete with one of its blobs",
        "artifact_store/store.py",
        "return all(self.blob_path(blob) is not None for blob in manifest.blobs)",
        "return any(self.blob_path(blob) is not None for blob in manifest.blobs)",
        f"{STORE} tests/artifact_store/test_odd_folders.py {WRITES}",
    ),
    Mutant(
        "a manifest of another program is read",
        "artifact_store/store.py",
        "if manifest.program_key != program_key:",
        "if not manifest.program_key:",
        STORE,
    ),
    Mutant(
        "a manifest of another name is read",
        "artifact_store/store.py",
        "expect_id=expected, origin",
        "expect_id=None, origin",
        STORE,
    ),
    Mutant(
        "what is damaged stays where it is",
        "artifact_store/tiers/folder.py",
        "        os.replace(self.path(name), place)\n",
        "",
        STORE,
    ),
    Mutant(
        "a newer format is set aside",
        "artifact_store/store.py",
        "            self._entries.miss(name, str(error))\n            return None\n        except (Damaged",
        "            self._entries.quarantine(name, str(error))\n            return None\n        except (Damaged",
        STORE,
    ),
    Mutant(
        "a record's checksum is not compared",
        "artifact_store/named_records.py",
        "if digest(outer[2]) != outer[1]:",
        "if not outer[1]:",
        f"{STORE} {WRITES}",
    ),
    Mutant(
        "a store opened read-only is written",
        "artifact_store/entries.py",
        '        if self.readonly:\n            raise StoreError(f"the store at',
        '        if self.readonly and self.problem:\n            raise StoreError(f"the store at',
        STORE,
    ),
    Mutant(
        "a store of another layout is used",
        "artifact_store/tiers/folder.py",
        "    if text.isdigit():\n",
        "    if text.isdigit() and int(text) > 10**6:\n",
        f"{STORE} {WRITES}",
    ),
    Mutant(
        "the environment is before the argument",
        "artifact_store/place.py",
        "    if isinstance(path, str):\n        return folder_of(path)\n",
        "    if isinstance(path, str):\n        return folder_of(os.environ.get(ENVIRONMENT) or path)\n",
        STORE,
    ),
    Mutant(
        "files are not renamed into place",
        "artifact_store/tiers/folder.py",
        "_write_synced(aside, data, mode, self.root)\n            os.replace(aside, target)",
        "_write_synced(target, data, mode, self.root)",
        WRITES,
    ),
    Mutant("files are not synced", "artifact_store/tiers/folder.py", "        os.fsync(file.fileno())", "        pass", WRITES),
    Mutant(
        "folders are not synced after a rename",
        "artifact_store/tiers/folder.py",
        "            raise\n        sync_folder(target.parent)",
        "            raise",
        WRITES,
    ),
    Mutant(
        "folders are not synced where they are made",
        "artifact_store/tiers/folder.py",
        "            give(self.root, folder)\n        sync_folder(folder.parent)",
        "            give(self.root, folder)",
        WRITES,
    ),
    Mutant("a short write is the end", "artifact_store/tiers/folder.py", "        while view:  #", "        if view:  #", WRITES),
    Mutant(
        "temporaries stay after a failure",
        "artifact_store/tiers/folder.py",
        "                aside.unlink()\n            raise",
        "                pass\n            raise",
        f"{WRITES} tests/artifact_store/test_crash.py::test_a_disk_that_fills_up",
    ),
    Mutant(
        "others may read the store",
        "artifact_store/tiers/folder.py",
        "folder.mkdir(mode=0o700, exist_ok=True)",
        "folder.mkdir(mode=0o755, exist_ok=True)",
        STORE,
    ),
    Mutant(
        "a damaged blob of the right size is kept",
        "artifact_store/tiers/folder.py",
        "if path.stat().st_size == len(data) and digest(read_file(path)) == path.name:",
        "if path.stat().st_size == len(data):",
        STORE,
    ),
    Mutant(
        "the time of a kept blob is not renewed",
        "artifact_store/tiers/folder.py",
        "                os.utime(path)\n                return",
        "                return",
        STORE,
    ),
    Mutant(
        "temporaries are listed",
        "artifact_store/tiers/folder.py",
        "if not file.startswith(TEMPORARY_PREFIX)]",
        "if file]",
        f"{STORE} {WRITES}",
    ),
    # what may become code
    Mutant(
        "what the policy refuses is admitted",
        "artifact_store/trust/trusted.py",
        "        raise Untrusted(refusal)",
        "        pass",
        f"{TRUST} tests/artifact_store/test_tiers.py",
    ),
    Mutant(
        "content with another digest is admitted", "artifact_store/trust/trusted.py", "    if not holds:\n", "    if not digest:\n", TRUST
    ),
    Mutant("anybody makes a Trusted", "artifact_store/trust/trusted.py", "if seal is not _SEAL:", "if seal is None:", TRUST),
    Mutant(
        "anything with a content is Trusted",
        "artifact_store/trust/trusted.py",
        "if type(trusted) is not Trusted:",
        "if trusted is None:",
        TRUST,
    ),
    Mutant(
        "bytes of unknown origin are this process's",
        "artifact_store/format/manifest.py",
        'origin=origin or Origin(UNKNOWN, "", where)',
        "origin=origin or MADE_HERE",
        TRUST,
    ),
    Mutant(
        "guards of what is not trusted are evaluated",
        "artifact_store/store.py",
        "                found.append(self.trust(manifest))\n",
        "                found.append(admit_manifest(manifest, Policy(frozenset({manifest.origin.kind}))))\n",
        "tests/runtime/executable/test_trusted_only.py",
    ),
    # leases
    Mutant(
        "a lease is taken that somebody holds",
        "artifact_store/local/leases.py",
        "os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)",
        "os.O_CREAT | os.O_CLOEXEC, 0o600)",
        LEASES,
    ),
    Mutant(
        "a dead holder is waited for",
        "artifact_store/local/leases.py",
        "> self.expiry or is_dead(record):",
        "> self.expiry:",
        f"{LEASES}::test_takes_over_from_a_killed_process_at_once",
    ),
    Mutant(
        "a holder that beats is taken for dead",
        "artifact_store/local/leases.py",
        "        if now != self._seen:\n",
        "        if self._seen is None:\n",
        f"{LEASES}::test_does_not_take_over_while_the_other_beats",
    ),
    Mutant(
        "a holder does not beat",
        "artifact_store/local/leases.py",
        "            os.utime(path)\n        except OSError:",
        "            pass\n        except OSError:",
        f"{LEASES}::test_a_holder_keeps_beating",
    ),
    Mutant(
        "a forked child gives its parent's lease back",
        "artifact_store/local/leases.py",
        "if self.held and os.getpid() == self._owner and",
        "if self.held and",
        f"{LEASES}::test_a_forked_child_does_not_release_its_parents",
    ),
    Mutant(
        "a lease is not given back",
        "artifact_store/local/leases.py",
        "                self.path.unlink()",
        "                pass",
        f"{LEASES}::test_released_when_the_work_fails {LEASES}::test_waits_until_it_is_released",
    ),
    Mutant(
        "a process of another machine is asked for here",
        "artifact_store/local/leases.py",
        "if not isinstance(pid, int) or not 0 < pid < 1 << 31 or place != _place():",
        "if not isinstance(pid, int):",
        f"{LEASES}::test_takes_over_when_another_machine_stops_beating {LEASES}::test_does_not_take_over_while_the_other_beats {WRITES}",
    ),
    Mutant(
        "a later process with the same number is the holder",
        "artifact_store/local/leases.py",
        'return _started(pid) != holder.get("started")',
        "return False",
        f"{LEASES} {WRITES}",
    ),
    Mutant(
        "another one's lease is given back",
        "artifact_store/local/leases.py",
        '_holder(self.path).get("token") == self._token:',
        '_holder(self.path).get("token"):',
        f"{LEASES} {WRITES}",
    ),
    # prune
    Mutant(
        "prune: one condition is enough",
        "artifact_store/maintenance/prune.py",
        '        if now - entry.last_use <= policy.unused_for:\n            return ""\n',
        "",
        PRUNE,
    ),
    Mutant(
        "prune: what is as old as the limit goes",
        "artifact_store/maintenance/prune.py",
        "if now - entry.created <= policy.older_than:",
        "if now - entry.created < policy.older_than:",
        PRUNE,
    ),
    Mutant(
        "prune: the most recently used go",
        "artifact_store/maintenance/prune.py",
        "(sorted(group, key=_recency, reverse=True)",
        "(sorted(group, key=_recency)",
        PRUNE,
    ),
    Mutant(
        "prune: one more is kept",
        "artifact_store/maintenance/prune.py",
        "for entry in group[:keep_last]}",
        "for entry in group[: keep_last + 1]}",
        PRUNE,
    ),
    Mutant(
        "prune: the size limit ignores what is protected",
        "artifact_store/maintenance/prune.py",
        "        if entry.artifact_id in protected:\n            continue\n",
        "",
        PRUNE,
    ),
    Mutant(
        "prune: the newest go for the size limit",
        "artifact_store/maintenance/prune.py",
        "for entry in sorted(entries, key=_recency):",
        "for entry in sorted(entries, key=_recency, reverse=True):",
        PRUNE,
    ),
    Mutant(
        "prune: a store of just the limit loses one",
        "artifact_store/maintenance/prune.py",
        "if size <= max_size:",
        "if size < max_size:",
        PRUNE,
    ),
    Mutant(
        "prune: a shared blob counts for each user",
        "artifact_store/maintenance/prune.py",
        "for blob, length in entry.blobs.items() if users[blob] == 0)",
        "for blob, length in entry.blobs.items())",
        PRUNE,
    ),
    Mutant(
        "prune: blobs of what stays go", "artifact_store/maintenance/prune.py", "- staying - kept_by_records", "- kept_by_records", PRUNE
    ),
    Mutant("prune: blobs of records go", "artifact_store/maintenance/prune.py", "- staying - kept_by_records", "- staying", PRUNE),
    Mutant(
        "prune: creation decides what was used",
        "artifact_store/maintenance/prune.py",
        "return (entry.last_use, entry.created, entry.artifact_id)",
        "return (entry.created, entry.last_use, entry.artifact_id)",
        PRUNE,
    ),
    Mutant(
        "prune: a dry run removes",
        "artifact_store/maintenance/prune.py",
        "        if not dry_run:\n            for removal in going:",
        "        if going:\n            for removal in going:",
        PRUNE,
    ),
    Mutant(
        "prune: young leftovers go",
        "artifact_store/maintenance/garbage.py",
        'yield from _due(path, "blob that no artifact needs", grace)',
        'yield from _due(path, "blob that no artifact needs", 0.0)',
        PRUNE,
    ),
    Mutant(
        "prune: blobs of a newer format go",
        "artifact_store/maintenance/garbage.py",
        "    except FutureFormat:\n        return None\n    except OSError as error:",
        "    except FutureFormat:\n        return recorded(store)\n    except OSError as error:",
        PRUNE,
    ),
    Mutant(
        "prune: named targets are any",
        "artifact_store/maintenance/prune.py",
        "if not fnmatchcase(entry.target, policy.target):",
        "if not entry.target:",
        PRUNE,
    ),
    # manifests and guard hashes
    Mutant(
        "a manifest's checksum is not compared",
        "artifact_store/format/manifest.py",
        "if _checksum(sections) != outer[2]:",
        "if not outer[2]:",
        MANIFEST,
    ),
    Mutant(
        "the checksum leaves a section out",
        "artifact_store/format/manifest.py",
        "    for section in sections:\n        state.update(len",
        "    for section in tuple(sections)[:3]:\n        state.update(len",
        MANIFEST,
    ),
    Mutant(
        "an artifact's id is not compared",
        "artifact_store/format/manifest.py",
        "if expect_id is not None and manifest.artifact_id != expect_id:",
        "if expect_id is None and manifest.artifact_id != expect_id:",
        MANIFEST,
    ),
    Mutant(
        "a newer format is read",
        "artifact_store/format/manifest.py",
        "    if outer[1] > FORMAT:",
        "    if outer[1] > FORMAT + 10**6:",
        MANIFEST,
    ),
    Mutant(
        "versions are no part of the id",
        "artifact_store/format/manifest.py",
        '            "versions": asdict(versions),',
        '            "versions": asdict(Versions("", versions.torch, versions.python, versions.compiler)),',
        MANIFEST,
    ),
    Mutant(
        "options are no part of the id",
        "artifact_store/format/manifest.py",
        '            "options": options,',
        '            "options": {},',
        MANIFEST,
    ),
    Mutant(
        "code digests are no part of the id",
        "artifact_store/format/manifest.py",
        '            "digests": digests or {},',
        '            "digests": {},',
        MANIFEST,
    ),
    Mutant(
        "the guard hash knows paths only",
        "artifact_store/format/guards.py",
        'digest.update("\\x1f".join(guard.sort_key()).encode())',
        'digest.update("\\x1f".join(guard.sort_key()[:2]).encode())',
        f"{MANIFEST} tests/artifact_store/test_packed_guards.py",
    ),
    Mutant(
        "the guard hash knows the order given",
        "artifact_store/format/guards.py",
        "return tuple(keyed[key] for key in sorted(keyed))",
        "return tuple(keyed.values())",
        MANIFEST,
    ),
    Mutant(
        "1 is True in the text of a constant",
        "artifact_store/format/guards.py",
        'return f"{type(value).__name__}={value!r}"',
        "return str(value) if value is not True else '1'",
        f"{MANIFEST} tests/artifact_store/test_packed_guards.py {WRITES}",
    ),
    Mutant(
        "keys of a packed map are in the order given",
        "artifact_store/format/msgpack.py",
        "for key in sorted(value)}",
        "for key in value}",
        f"{MANIFEST} tests/artifact_store/test_msgpack.py",
    ),
    # verify
    Mutant(
        "verify: damaged blobs are sound",
        "artifact_store/maintenance/verify.py",
        "            elif digest(data) != path.name:\n",
        "            elif not data:\n",
        VERIFY,
    ),
    Mutant(
        "verify: artifacts without their blobs are sound",
        "artifact_store/maintenance/verify.py",
        "if missing := self._missing(manifest.blobs):",
        "if missing := self._missing([]):",
        VERIFY,
    ),
    Mutant(
        "verify: what was found and not repaired is sound",
        "artifact_store/maintenance/verify.py",
        "return all(problem.repaired for problem in self.problems)",
        "return any(problem.repaired for problem in self.problems) or not self.problems",
        VERIFY,
    ),
    Mutant(
        "uses are counted twice",
        "artifact_store/maintenance/index.py",
        "aside = [name for name in (*counted, *uses) if",
        "aside = [name for name in () if",
        INDEX,
    ),
)
