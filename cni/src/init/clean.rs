//! The state of earlier agents, removed before the start on request.

use super::{InitError, Variables, plugin, say, switch};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs `agent cleanup` as the variables request it: `CILIUM_BPF_STATE` for programs and maps, `CILIUM_ALL_STATE` for all
/// state, and then also the CNI configuration at `WRITE_CNI_CONF_WHEN_READY`. The first two have older names, too.
pub(super) fn run(
    agent: Option<&Path>,
    variables: Variables<'_>,
    out: &mut dyn Write,
) -> Result<(), InitError> {
    let any = |names: [&'static str; 2]| {
        let [new, old] = names.map(|name| switch(variables, name, false));
        Ok::<_, InitError>(new? | old?)
    };
    let bpf = any(["CILIUM_BPF_STATE", "CLEAN_CILIUM_BPF_STATE"])?;
    let all = any(["CILIUM_ALL_STATE", "CLEAN_CILIUM_STATE"])?;
    if !bpf && !all {
        say(out, "no state is to be cleaned");
        return Ok(());
    }
    cleanup(agent, if all { "--all-state" } else { "--bpf-state" }, out)?;
    match variables("WRITE_CNI_CONF_WHEN_READY").filter(|path| all && !path.is_empty()) {
        Some(written) => plugin::restore_networks(Path::new(&written), out),
        None => Ok(()),
    }
}

fn cleanup(agent: Option<&Path>, part: &str, out: &mut dyn Write) -> Result<(), InitError> {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name("agent"));
    let program = match (agent, beside.filter(|path| path.is_file())) {
        (Some(agent), _) => agent.to_owned(),
        (None, Some(beside)) => beside,
        (None, None) => PathBuf::from("cilium-agent"),
    };
    let failed = |reason| InitError::Program {
        program: format!("{} cleanup --force {part}", program.display()),
        reason,
    };
    let mut command = Command::new(&program);
    command.args(["cleanup", "--force", part]).stdin(Stdio::null());
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    let _ = out.write_all(&output.stdout);
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr);
    Err(failed(format!("{}: {}", output.status, reason.trim_end())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    /// An agent that reports its arguments, or fails.
    fn agent(folder: &Path, exit: u8) -> PathBuf {
        let path = folder.join(format!("agent-{exit}"));
        fs::write(&path, format!("#!/bin/sh\necho \"$@\"\necho broken >&2\nexit {exit}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn run_with(agent: &Path, pairs: &[(&str, &str)]) -> Result<String, InitError> {
        let variable =
            |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let mut out = Vec::new();
        run(Some(agent), &variable, &mut out).map(|()| String::from_utf8(out).unwrap())
    }

    #[test]
    fn three_switches() {
        let folder = tempfile::tempdir().unwrap();
        let good = agent(folder.path(), 0);
        let file = folder.path().join("05-cilium.conflist");
        fs::write(&file, "{}").unwrap();
        let conf = ("WRITE_CNI_CONF_WHEN_READY", file.to_str().unwrap());
        let run = |pairs: &[(&str, &str)]| run_with(&good, pairs).unwrap();
        assert_eq!(run(&[conf]), "no state is to be cleaned\n");
        assert_eq!(
            run(&[conf, ("CILIUM_ALL_STATE", "false"), ("CILIUM_BPF_STATE", "")]),
            "no state is to be cleaned\n"
        );
        assert_eq!(run(&[conf, ("CILIUM_BPF_STATE", "true")]), "cleanup --force --bpf-state\n");
        assert_eq!(run(&[conf, ("CLEAN_CILIUM_BPF_STATE", "true")]), "cleanup --force --bpf-state\n");
        assert!(file.exists(), "only all state has the CNI configuration");
        let all = run(&[conf, ("CLEAN_CILIUM_STATE", "true"), ("CILIUM_BPF_STATE", "true")]);
        assert!(all.starts_with("cleanup --force --all-state\nremoved "), "{all}");
        assert!(!file.exists());
        assert_eq!(run(&[conf, ("CILIUM_ALL_STATE", "true")]), "cleanup --force --all-state\n");
    }

    #[test]
    fn failures_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let all = [("CILIUM_ALL_STATE", "true")];
        let error = run_with(&agent(folder.path(), 3), &all).unwrap_err().to_string();
        assert!(
            error.ends_with("agent-3 cleanup --force --all-state failed: exit status: 3: broken"),
            "{error}"
        );
        let error = run_with(Path::new("/nonexistent/agent"), &all).unwrap_err();
        insta::assert_snapshot!(error, @"/nonexistent/agent cleanup --force --all-state failed: No such file or directory (os error 2)");
        let error = run_with(Path::new("x"), &[("CILIUM_ALL_STATE", "1")]).unwrap_err();
        insta::assert_snapshot!(error, @r#"variable CILIUM_ALL_STATE is "1", want true or false"#);
    }
}
