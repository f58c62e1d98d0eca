//! Tests of the run loop by small scripts: prefixes, sections, buffers, background commands, failure messages.

use std::time::{Duration, Instant};

use crate::run;

async fn passes(script: &str) -> String {
    let ran = run(script).await;
    assert_eq!(ran.result, Ok(()), "{}", ran.log);
    ran.log
}

async fn fails(script: &str) -> String {
    let ran = run(script).await;
    ran.result.expect_err(&ran.log)
}

#[tokio::test]
async fn failures_name_file_line_and_command() {
    assert_eq!(fails("echo a\n\ncmp 'a b' c\n").await.split(": open").next(), Some("t.txtar:3: cmp 'a b' c"));
    assert_eq!(fails("! echo a '' b").await, "t.txtar:1: echo a  b: unexpected success");
    assert_eq!(fails("# x\necho 'a").await, "t.txtar:2: parse error: unterminated quoted argument");
    assert_eq!(fails("? nosuch a").await, "t.txtar:1: nosuch a: unknown command");
    assert_eq!(fails("* nosuch").await, "t.txtar:1: nosuch: unknown command");
    assert_eq!(fails("! writes --nosuch").await, "t.txtar:1: writes --nosuch: unknown flag: --nosuch");
    assert_eq!(fails("writes --with=x a 'b c'").await, "t.txtar:1: writes a 'b c': failed with x");
    assert_eq!(fails("echo a &").await, "t.txtar:1: echo a: command cannot be run in background");
    assert_eq!(fails("panics").await, "t.txtar:1: panics: panicked: on purpose");
    assert_eq!(fails("cat 1 2\n").await.matches("no such file or directory").count(), 1);
}

#[tokio::test]
async fn conditions_decide_and_unknown_ones_fail() {
    passes("env X=1\n[yes] [is:1] [!is:2] env Y=1\n[!yes] nosuch\n[is:2] env Y=2\nenv Y\nstdout Y=1").await;
    assert_eq!(fails("? [nosuch] echo").await, "t.txtar:1: unknown condition \"nosuch\"");
    assert_eq!(fails("[nosuch:x] echo").await, "t.txtar:1: unknown condition prefix \"nosuch\"");
    assert_eq!(fails("[yes:x] echo").await, "t.txtar:1: condition \"yes\" cannot be used with a suffix");
    assert_eq!(fails("[is] echo").await, "t.txtar:1: condition \"is\" requires a suffix");
    assert_eq!(fails("[broken] echo").await, "t.txtar:1: evaluating condition \"broken\": no idea");
}

#[tokio::test]
async fn a_retry_repeats_its_section_with_the_words_of_the_first_pass() {
    let log = passes(
        "count\n# section\n[!yes] panics\ncount\nenv --from-stdout N\necho $N\n* stdout 2\nenv N\nstdout N=2",
    )
    .await;
    assert_eq!(log.matches("> count").count(), 2, "a repetition is not another line: {log}");
    // The word `$N` keeps its first expansion while the counter increases.
    passes("# section\ncount\nenv --from-stdout N\necho $N\ncp stdout f\ncount\n* stdout 4\ncmp f g\nenv N\nstdout N=3\n-- g --\n1\n").await;
    passes("count\n!* stdout ^1$\nstdout 2").await;
}

#[tokio::test]
async fn a_retry_ends_at_the_deadline_with_the_last_failure() {
    let begin = Instant::now();
    let error = fails("* stdout never").await;
    assert_eq!(error, "t.txtar:1: stdout never: no match for never in stdout (context deadline exceeded)");
    assert!(begin.elapsed() >= Duration::from_secs(2));
}

#[tokio::test]
async fn a_timeout_is_not_an_expected_failure() {
    assert_eq!(fails("! hangs").await, "t.txtar:1: hangs: context deadline exceeded");
    assert_eq!(fails("! sleep 1h").await, "t.txtar:1: sleep 1h: context deadline exceeded");
}

#[tokio::test]
async fn buffers_are_kept_until_a_command_yields_output() {
    passes(
        "echo a
cp stdout f
stdout a
! writes --with x
stdout out
stderr err",
    )
    .await;
    passes("echo a\nsleep 1ms &\nempty stdout\nempty stderr\nwait").await;
    passes("echo\nempty --trim stdout\n! empty stdout\nsleep 1ms\nempty stdout").await;
}

#[tokio::test]
async fn the_background_is_joined_and_judged() {
    passes("env PATH=/bin:/usr/bin\nexec sh -c 'sleep 0.05; echo one' &\nexec echo two &\nwait\ncmp stdout f\n-- f --\none\ntwo\n").await;
    assert_eq!(
        fails("env PATH=/bin:/usr/bin\nexec false &\n! wait").await,
        "t.txtar:3: exec false: exit status 1"
    );
    passes("env PATH=/bin:/usr/bin\n! exec false &\nwait").await;
    let begin = Instant::now();
    assert_eq!(fails("sleep 1h &\n").await, "<end>:0: sleep 1h: context canceled");
    passes("env PATH=/bin:/usr/bin\n? exec sleep 1h &\n").await;
    assert!(begin.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn programs_end_with_the_script() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid").display().to_string();
    let script =
        format!("env PATH=/bin:/usr/bin\nexec sh -c 'trap \"\" INT; echo $$ >{file}; sleep 100; true'");
    assert!(fails(&script).await.ends_with("context deadline exceeded"));
    let pid = std::fs::read_to_string(file).unwrap();
    let gone = || !std::path::Path::new("/proc").join(pid.trim()).join("exe").exists();
    let begin = Instant::now();
    while !gone() && begin.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(gone(), "process {} still runs", pid.trim());
}

#[tokio::test]
async fn the_environment_of_the_test_is_not_inherited() {
    passes("env\n! stdout HOME=\n! stdout PATH=\nstdout ^PWD=/\n! exec true\nexec /bin/sh -c 'cd /; pwd'\nstdout ^/$").await;
}

#[tokio::test]
async fn stop_ends_with_success() {
    let log = passes("stop 'enough said'\nnosuch").await;
    assert!(log.ends_with("stop: enough said\n"), "{log}");
}

#[tokio::test]
async fn every_command_has_help() {
    let script = r"writes --help
stdout '^writes \[--with=string\] $'
stdout -- '--with string   what'
help -a st
cmp stdout f
help -v 'w.it'
stdout '^wait'
stdout '^writes'
help nosuch
! stdout .
help '[yes]'
stdout '^\[yes\]'
! stdout writes
help
stdout '^\[is:\*\]'
stdout '^writes \[--with=string\] $'
! stdout Flags:
-- f --
stderr
stdout
stop
";
    passes(script).await;
}

#[tokio::test]
async fn a_typed_line_is_not_repeated_and_has_no_place() {
    let folder = tempfile::tempdir().unwrap();
    let engine = std::sync::Arc::new(crate::engine());
    let mut session = engine.session(hive_script::State::new(folder.path()));
    for (line, expected) in [
        ("* stdout never", "<stdin>:0: stdout never: no match for never in stdout"),
        ("nosuch a", "<stdin>:0: nosuch a: unknown command"),
        ("[nosuch] echo", "unknown condition \"nosuch\""),
        ("echo 'a", "unterminated quoted argument"),
        ("'' a", "missing command"),
    ] {
        assert_eq!(session.line(line).await.unwrap_err().to_string(), expected);
    }
}

#[tokio::test]
async fn sections_log_their_duration() {
    let log = passes("# one\necho a\n\n# two\n").await;
    let times = hive_command::multi_line(r"^# (one|two) \(\d\.\d{3}s\)$").unwrap();
    assert_eq!(times.find_iter(log.as_bytes()).count(), 2, "{log}");
}

#[tokio::test]
async fn any_bytes_end_without_a_panic() {
    for script in
        ["\u{0}\n\u{feff}echo", "$", "[", "'", "&", "!* &", "echo $(x) ${", "\r\n\r", "#", "env =", "cd /"]
    {
        let _either = run(script).await.result;
    }
}
