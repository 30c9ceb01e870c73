"""The commands: exit codes, units, what a dry run does, what is asked for."""

from tests.mutation.table import Mutant

STORE = "tests/precast/cli/test_store_commands.py"
BUILD = "tests/precast/cli/test_build_commands.py"

ROWS = (
    Mutant(
        "a failure ends with 0",
        "precast/cli/output.py",
        "ANSWER_NO = 1",
        "ANSWER_NO = 0",
        f"{STORE}::test_a_store_that_does_not_exist {STORE}::test_show_of_what_is_not_there {STORE}::test_verify",
    ),
    Mutant(
        "verify: problems end with 0",
        "precast/cli/store/store_commands.py",
        "finish(0 if report.good else ANSWER_NO)",
        "finish(0)",
        f"{STORE}::test_verify {STORE}::test_a_wrong_mode_is_mended_by_chmod",
    ),
    Mutant(
        "doctor: problems end with 0",
        "precast/cli/health/doctor.py",
        "finish(ANSWER_NO if bad else 0)",
        "finish(0)",
        f"{STORE}::test_doctor",
    ),
    Mutant(
        "build: what failed ends with 0",
        "precast/cli/programs/build_commands.py",
        'finish(ANSWER_NO if counts["failed"] or unsent else 0)',
        "finish(ANSWER_NO if unsent else 0)",
        f"{BUILD}::test_a_signature_that_does_not_fit_is_named_and_the_others_are_built",
    ),
    Mutant(
        "check: a miss ends with 0",
        "precast/cli/programs/build_commands.py",
        "finish(ANSWER_NO if missing else 0)",
        "finish(0)",
        f"{BUILD}::test_check_says_no_and_why {BUILD}::test_check_of_another_target_says_no",
    ),
    Mutant(
        "explain: a miss ends with 0",
        "precast/cli/programs/build_commands.py",
        "finish(0 if all(outcome.good for outcome in outcomes) else ANSWER_NO)",
        "finish(0)",
        f"{BUILD} tests/precast/cli/test_json.py",
    ),
    Mutant(
        "a full disk ends with 0",
        "precast/cli/main.py",
        '        click.echo(f"error: the output cannot be written: {error.strerror}", err=True)\n        sys.exit(1)',
        '        click.echo(f"error: the output cannot be written: {error.strerror}", err=True)\n        sys.exit(0)',
        f"{STORE}::test_an_output_that_takes_nothing",
    ),
    Mutant(
        "a failure is no JSON",
        "precast/cli/main.py",
        'self._as_json = "--json" in args',
        'self._as_json = "--json" in args[:1]',
        f"{BUILD}::test_wrong_usage_is_json_too {STORE} tests/precast/cli/test_json.py",
    ),
    Mutant(
        "an empty store is the default one",
        "precast/cli/output.py",
        '    if value == "":\n',
        "    if value == 0:\n",
        f"{STORE}::test_an_empty_store_option_is_not_the_default_store",
    ),
    Mutant(
        "prune: a dry run removes",
        "precast/cli/store/store_commands.py",
        "done = pruning.prune(store, policy, dry_run=dry_run)",
        "done = pruning.prune(open_store(store_path, readonly=False), policy, dry_run=False)",
        f"{STORE}::test_prune",
    ),
    Mutant(
        "prune: versions that are used are stale",
        "precast/cli/store/store_commands.py",
        "stale = why_stale if stale_versions else None",
        'stale = (lambda versions: "old") if stale_versions else None',
        f"{STORE}::test_prune_of_stale_versions",
    ),
    Mutant(
        "prune: the target's name is taken as it stands",
        "precast/cli/store/store_commands.py",
        'return "cpu:native-*" if target == "cpu:native" else target',
        "return target",
        f"{STORE}::test_prune_by_the_name_of_a_target",
    ),
    Mutant(
        "ls: another program is listed",
        "precast/cli/store/store_commands.py",
        "if matches(entry, program)]",
        "if entry.program_key]",
        f"{STORE}::test_ls",
    ),
    Mutant("units: a day has 12 hours", "precast/report/units.py", '"d": 86400.0,', '"d": 43200.0,', f"{STORE}::test_durations"),
)
