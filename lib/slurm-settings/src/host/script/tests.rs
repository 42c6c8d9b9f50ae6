use super::*;

fn of(text: &str) -> Option<Ending> {
    ending(text, "gpufrac-prolog")
}

#[test]
fn scripts_that_end_with_the_programs_exit_status() {
    for text in [
        "#!/bin/sh\nexec /usr/sbin/gpufrac-prolog \"$@\"\necho never\n",
        "#!/bin/sh\n/opt/site/first\n/usr/sbin/gpufrac-prolog\n",
        "#!/bin/bash\n/usr/sbin/gpufrac-prolog || exit $?\nlogger done\n",
        "#!/bin/bash\n/usr/sbin/gpufrac-prolog || exit \"$?\"\nlogger done\n",
        "/usr/sbin/gpufrac-prolog || exit 1; logger done\n",
        "#!/bin/sh -e\n/usr/sbin/gpufrac-prolog\nlogger done\n",
        "#!/bin/bash\nset -euo pipefail\n/usr/sbin/gpufrac-prolog 2>&1 | logger\nlogger done\n",
        "#!/bin/sh\nset -e\nexport A=b\nA=1 timeout -k 5 60 /usr/sbin/gpufrac-prolog\nlogger done\n",
        "#!/bin/sh\n/usr/sbin/gpufrac-prolog\nexit $?\n",
        "#!/bin/sh\n/usr/sbin/gpufrac-prolog\nrc=$?\nlogger $rc\nexit \"$rc\"\n",
        "#!/bin/sh\n/usr/sbin/gpufrac-prolog || rc=$?\nexit ${rc}\n",
        "#!/bin/sh\nif ! /usr/sbin/gpufrac-prolog; then\n  logger bad\n  exit 1\nfi\nlogger good\n",
        "#!/bin/sh\nif /usr/sbin/gpufrac-prolog; then\n  logger good\nelse\n  exit 1\nfi\nlogger good\n",
        "#!/bin/sh\n/usr/sbin/gpufrac-prolog\nif [ $? -ne 0 ]; then exit 1; fi\nlogger good\n",
        "#!/bin/sh\n/usr/sbin/gpufrac-prolog || { logger bad; exit 1; }\nlogger good\n",
        "#!/bin/sh\n/usr/sbin/gpufrac-prolog || {\n logger bad\n exit 1\n}\nlogger good\n",
        "#!/bin/sh\nP=/usr/sbin/gpufrac-prolog\n\"$P\" || exit $?\nlogger good\n",
        "#!/bin/sh\nif [ -x /usr/sbin/gpufrac-prolog ]; then\n  /usr/sbin/gpufrac-prolog\nfi\n",
        "#!/bin/sh\n# gpufrac-prolog; true\n/usr/sbin/gpufrac-prolog # ; true\n",
        "#!/bin/sh\n/usr/sbin/gpufrac-prolog \\\n  || exit $?\ntrue\n",
    ] {
        assert_eq!(of(text), Some(Ending::Passed), "{text}");
    }
}

#[test]
fn scripts_that_lose_the_exit_status() {
    for (text, line) in [
        ("#!/bin/sh\n/usr/sbin/gpufrac-prolog; true\n", 2),
        ("#!/bin/sh\n/usr/sbin/gpufrac-prolog || true\n", 2),
        ("#!/bin/sh\n/usr/sbin/gpufrac-prolog || :\n", 2),
        ("#!/bin/sh\n/usr/sbin/gpufrac-prolog || exit 0\n", 2),
        (
            "#!/bin/sh\n/usr/sbin/gpufrac-prolog || logger bad\nexit 0\n",
            2,
        ),
        (
            "#!/bin/sh\n/usr/sbin/gpufrac-prolog\n\n# all is well\nexit 0\n",
            5,
        ),
        ("#!/bin/sh\n/usr/sbin/gpufrac-prolog\nlogger done\n", 3),
        ("#!/bin/sh\n/usr/sbin/gpufrac-prolog &\nwait\n", 2),
        ("#!/bin/sh\n/usr/sbin/gpufrac-prolog | logger\n", 2),
        (
            "#!/bin/sh\nset -e\nset +e\n/usr/sbin/gpufrac-prolog\nlogger done\n",
            5,
        ),
        (
            "#!/bin/sh\n/usr/sbin/gpufrac-prolog\nrc=$?\nlogger done\n",
            2,
        ),
        (
            "#!/bin/sh\nif ! /usr/sbin/gpufrac-prolog; then\n  logger bad\nfi\nexit 0\n",
            2,
        ),
        (
            "#!/bin/sh\n/usr/sbin/gpufrac-prolog || { logger bad; }\nexit 0\n",
            2,
        ),
        ("#!/bin/bash\nset -e\n/usr/sbin/gpufrac-prolog || true\n", 3),
    ] {
        assert_eq!(of(text), Some(Ending::Lost(line)), "{text}");
    }
}

#[test]
fn scripts_that_are_not_understood_are_reported_as_unknown() {
    for (text, line) in [
        (
            "#!/usr/bin/python3\nimport subprocess\nsubprocess.run('/usr/sbin/gpufrac-prolog')\n",
            1,
        ),
        (
            "#!/bin/sh\nrun() {\n  /usr/sbin/gpufrac-prolog\n}\nrun || exit 1\n",
            3,
        ),
        (
            "#!/bin/sh\nfor p in /usr/sbin/gpufrac-prolog /x; do $p || exit; done\n",
            2,
        ),
        (
            "#!/bin/sh\n/usr/sbin/gpufrac-prolog || die \"no slice\"\n",
            2,
        ),
        (
            "#!/bin/sh\n/usr/sbin/gpufrac-prolog\nrc=$?\n[ $rc = 0 ] || finish $rc\n",
            2,
        ),
    ] {
        assert_eq!(of(text), Some(Ending::Unsure(line)), "{text}");
    }
    // The script does not run the program.
    assert_eq!(of("#!/bin/sh\n# /usr/sbin/gpufrac-prolog\nexit 0\n"), None);
    assert_eq!(of("#!/bin/sh\n"), None);
}

#[test]
fn conditions_of_the_program_are_named() {
    for (text, expected) in [
        (
            "case $SLURM_JOB_PARTITION in\ngpu)\n  /usr/sbin/gpufrac-prolog || exit $?\n  ;;\nesac\nlogger good\n",
            Ending::Depends(2),
        ),
        (
            "if [ \"$SLURM_JOB_PARTITION\" = gpu ]; then\n  /usr/sbin/gpufrac-prolog || exit $?\nfi\n",
            Ending::Depends(2),
        ),
        (
            "[ \"$SLURM_JOB_PARTITION\" = gpu ] && exec /usr/sbin/gpufrac-prolog\nexit 0\n",
            Ending::Depends(2),
        ),
        (
            "[ \"$SLURM_JOB_UID\" = 0 ] && exit 0\n/usr/sbin/gpufrac-prolog || exit $?\n",
            Ending::Depends(2),
        ),
        (
            "if [ -z \"$A\" ]; then exit 0; fi\n/usr/sbin/gpufrac-prolog\n",
            Ending::Depends(2),
        ),
        (
            "[ -x /usr/sbin/gpufrac-prolog ] || exit 0\n/usr/sbin/gpufrac-prolog\n",
            Ending::Passed,
        ),
        (
            "/opt/site/first || exit 1\n/usr/sbin/gpufrac-prolog\n",
            Ending::Passed,
        ),
    ] {
        assert_eq!(of(&format!("#!/bin/sh\n{text}")), Some(expected), "{text}");
    }
}

#[test]
fn scripts_that_never_make_a_slice_are_named() {
    for (text, expected) in [
        (
            "env -i /usr/sbin/gpufrac-prolog || exit $?\n",
            Ending::WithoutVariables(2),
        ),
        (
            "/usr/bin/env - PATH=/bin gpufrac-prolog\n",
            Ending::WithoutVariables(2),
        ),
        (
            "sudo /usr/sbin/gpufrac-prolog || exit $?\n",
            Ending::WithoutVariables(2),
        ),
        (
            "sudo -E /usr/sbin/gpufrac-prolog || exit $?\n",
            Ending::Passed,
        ),
        (
            "su - root -c /usr/sbin/gpufrac-prolog || exit $?\n",
            Ending::WithoutVariables(2),
        ),
        (
            "su root -c /usr/sbin/gpufrac-prolog || exit $?\n",
            Ending::Unsure(2),
        ),
        (
            "ssh localhost /usr/sbin/gpufrac-prolog\n",
            Ending::WithoutVariables(2),
        ),
        ("env A=1 /usr/sbin/gpufrac-prolog\n", Ending::Passed),
        ("exit 0\n/usr/sbin/gpufrac-prolog\n", Ending::Unreached(2)),
        (
            "exec /opt/site/prolog\nexec /usr/sbin/gpufrac-prolog\n",
            Ending::Unreached(2),
        ),
        (
            "exec 2>>/var/log/prolog\nexec /usr/sbin/gpufrac-prolog\n",
            Ending::Passed,
        ),
        (
            "if [ -z $A ]; then\n  exit 0\nfi\n/usr/sbin/gpufrac-prolog\n",
            Ending::Depends(2),
        ),
        (
            "if [ -z $A ]; then exit 0; fi\n/usr/sbin/gpufrac-prolog\n",
            Ending::Depends(2),
        ),
        (
            "[ -n \"$A\" ] || exit 0\n/usr/sbin/gpufrac-prolog\n",
            Ending::Depends(2),
        ),
        (
            "die() {\n  exit 1\n}\n/usr/sbin/gpufrac-prolog\n",
            Ending::Passed,
        ),
        (
            "die() { exit 1; }\n/usr/sbin/gpufrac-prolog\n",
            Ending::Passed,
        ),
        (
            "case $A in\nx) exit 0 ;;\nesac\n/usr/sbin/gpufrac-prolog\n",
            Ending::Passed,
        ),
        (
            "for a in b; do\n  exit 1\ndone\n/usr/sbin/gpufrac-prolog\n",
            Ending::Passed,
        ),
        (
            "/usr/sbin/gpufrac-prolog || exit $?\nexit 0\n",
            Ending::Passed,
        ),
        (
            "timeout 5 /usr/sbin/gpufrac-prolog || exit $?\n",
            Ending::Hurried(2, 5),
        ),
        (
            "timeout -k 9 1m /usr/sbin/gpufrac-prolog || exit $?\n",
            Ending::Passed,
        ),
        (
            "timeout --foreground 0.5m /usr/sbin/gpufrac-prolog\n",
            Ending::Hurried(2, 30),
        ),
        (
            "timeout 5 /usr/sbin/gpufrac-prolog || true\n",
            Ending::Lost(2),
        ),
        (
            "trap 'exit 0' EXIT\n/usr/sbin/gpufrac-prolog || exit $?\n",
            Ending::Unsure(2),
        ),
        (
            "trap 'rm -f /tmp/x' EXIT\n/usr/sbin/gpufrac-prolog || exit $?\n",
            Ending::Passed,
        ),
    ] {
        assert_eq!(of(&format!("#!/bin/sh\n{text}")), Some(expected), "{text}");
    }
}

#[test]
fn any_text_is_read() {
    for text in [
        "",
        "\"",
        "'#\n",
        "a ||",
        "gpufrac-prolog ||",
        "gpufrac-prolog &&",
        "if gpufrac-prolog",
        "|",
        "&&\n;;",
        "\\",
    ] {
        of(text);
    }
}
