//! Steps of the agent's pod before the agent starts and after it has ended, which need no shell: `apiary-cni init STEP`, and
//! the binaries `cilium-mount` and `cilium-sysctlfix` of Cilium's image, as links to this one.
//!
//! Each step is idempotent: an init container runs again after each failure of another.

mod clean;
mod iptables;
mod mounts;
mod plugin;
mod sysctl;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The step of a line of arguments: `STEP [--FLAG=VALUE]... [PATH]`.
#[derive(Debug)]
struct Words<'a> {
    step: &'a str,
    flags: BTreeMap<&'a str, &'a str>,
    path: Option<&'a str>,
}

/// A step's error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// The step does not exist.
    #[error("unknown step {found:?}, known are {}", STEPS.join(", "))]
    UnknownStep {
        /// The word in its place.
        found: String,
    },
    /// The step has no such argument.
    #[error("step {step} has no argument {found:?}")]
    UnknownArgument {
        /// The step.
        step: String,
        /// The argument.
        found: String,
    },
    /// A variable is neither true nor false.
    #[error("variable {name} is {found:?}, want true or false")]
    NotBool {
        /// The variable.
        name: &'static str,
        /// Its value.
        found: String,
    },
    /// A file could not be used.
    #[error("unable to {action} {}: {source}", path.display())]
    File {
        /// The requested action.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A program could not be run, or failed.
    #[error("{program} failed: {reason}")]
    Program {
        /// The program with its arguments.
        program: String,
        /// Its end, with its error output.
        reason: String,
    },
    /// kube-proxy has not written its rules in time.
    #[error("kube-proxy has written no rules within {seconds} s")]
    NoKubeProxy {
        /// The limit.
        seconds: u64,
    },
}

/// The steps, in the order in which the pod has them.
const STEPS: [&str; 8] = [
    "mount-cgroup",
    "sysctl-overwrites",
    "mount-bpf-fs",
    "clean-state",
    "wait-for-kube-proxy",
    "install-plugin",
    "remove-aws-chains",
    "uninstall-plugin",
];

/// The variables of the process.
pub(crate) type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Runs the step that the arguments name; progress goes to `out`.
///
/// # Errors
/// Errors name the argument, variable, file or program at fault; a step that has failed can be run again.
pub fn run(
    arguments: &[String],
    variables: &dyn Fn(&str) -> Option<String>,
    out: &mut dyn Write,
) -> Result<(), InitError> {
    let words = Words::parse(arguments)?;
    let or = |name: &str, default: &'static str| variables(name).unwrap_or_else(|| default.to_owned());
    match words.step {
        "mount-cgroup" => {
            words.check(&["host-proc"], true)?;
            let path = words.path.map_or_else(|| or("CGROUP_ROOT", "/run/cilium/cgroupv2"), str::to_owned);
            mounts::enter_host(words.flags.get("host-proc").copied(), &["cgroup", "mnt"])?;
            mounts::mount(Path::new(&path), "cgroup2", out)
        }
        "sysctl-overwrites" => {
            words.check(
                &["host-proc", "sysctl-conf-dir", "sysctl-config-file", "systemd-sysctl-unit"],
                false,
            )?;
            mounts::enter_host(words.flags.get("host-proc").copied(), &["mnt"])?;
            sysctl::overwrite(
                Path::new(words.flag("sysctl-conf-dir", "/etc/sysctl.d")),
                words.flag("sysctl-config-file", "99-zzz-override_cilium.conf"),
                words.flag("systemd-sysctl-unit", "systemd-sysctl.service"),
                out,
            )
        }
        "mount-bpf-fs" => {
            words.check(&["host-proc"], true)?;
            mounts::enter_host(words.flags.get("host-proc").copied(), &["mnt"])?;
            mounts::mount(Path::new(words.path.unwrap_or("/sys/fs/bpf")), "bpf", out)
        }
        "clean-state" => {
            words.check(&["agent"], false)?;
            clean::run(words.flags.get("agent").map(Path::new), variables, out)
        }
        "wait-for-kube-proxy" => {
            words.check(&["timeout"], false)?;
            let limit = words.flags.get("timeout").map(|text| {
                let found = format!("--timeout={text}");
                text.parse().map_err(|_| InitError::UnknownArgument { step: words.step.into(), found })
            });
            iptables::wait_for_kube_proxy(limit.transpose()?, out)
        }
        "install-plugin" => {
            words.check(&[], true)?;
            plugin::install(Path::new(words.path.unwrap_or("/host/opt/cni/bin")), variables, out)
        }
        "remove-aws-chains" => {
            words.check(&[], false)?;
            iptables::remove_aws_chains(out)
        }
        "uninstall-plugin" => {
            words.check(&["config-dir"], true)?;
            let folder = Path::new(words.path.unwrap_or("/host/etc/cni/net.d"));
            let config = Path::new(words.flag("config-dir", "/tmp/cilium/config-map"));
            plugin::uninstall(folder, config, variables, out)
        }
        found => Err(InitError::UnknownStep { found: found.into() }),
    }
}

impl<'a> Words<'a> {
    fn parse(arguments: &'a [String]) -> Result<Self, InitError> {
        let step = arguments.first().map_or("", String::as_str);
        let mut words = Words { step, flags: BTreeMap::new(), path: None };
        let mut rest = arguments.iter().skip(1);
        while let Some(word) = rest.next() {
            let unknown = || InitError::UnknownArgument { step: step.into(), found: word.clone() };
            match (word.strip_prefix("--"), words.path) {
                (Some(flag), _) => {
                    let (name, value) = match flag.split_once('=') {
                        Some(pair) => pair,
                        None => (flag, rest.next().ok_or_else(unknown)?.as_str()),
                    };
                    words.flags.insert(name, value);
                }
                (None, None) => words.path = Some(word),
                (None, Some(_)) => return Err(unknown()),
            }
        }
        Ok(words)
    }

    /// Refuses arguments that the step does not have.
    fn check(&self, flags: &[&str], path: bool) -> Result<(), InitError> {
        let flag = self.flags.keys().find(|name| !flags.contains(name)).map(|name| format!("--{name}"));
        match flag.or(self.path.filter(|_| !path).map(str::to_owned)) {
            Some(found) => Err(InitError::UnknownArgument { step: self.step.into(), found }),
            None => Ok(()),
        }
    }

    fn flag(&self, name: &str, default: &'a str) -> &'a str {
        self.flags.get(name).copied().unwrap_or(default)
    }
}

/// Parses a switch; unset and empty mean `default`.
fn switch(variables: Variables<'_>, name: &'static str, default: bool) -> Result<bool, InitError> {
    match variables(name).as_deref() {
        None | Some("") => Ok(default),
        Some("true") => Ok(true),
        Some("false") => Ok(false),
        Some(found) => Err(InitError::NotBool { name, found: found.into() }),
    }
}

/// Writes a line of progress; a reader that is gone is no failure of the step.
fn say(out: &mut dyn Write, line: &str) {
    let _ = writeln!(out, "{line}");
}

fn file_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> InitError {
    let path = path.to_owned();
    move |source| InitError::File { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        run(&words, &|_| None, &mut Vec::new()).unwrap_err().to_string()
    }

    #[test]
    fn bad_arguments_are_named() {
        insta::assert_snapshot!(error("format-disk"), @r#"unknown step "format-disk", known are mount-cgroup, sysctl-overwrites, mount-bpf-fs, clean-state, wait-for-kube-proxy, install-plugin, remove-aws-chains, uninstall-plugin"#);
        insta::assert_snapshot!(error("mount-bpf-fs --proc=/x"), @r#"step mount-bpf-fs has no argument "--proc""#);
        insta::assert_snapshot!(error("mount-bpf-fs --host-proc=/nonexistent"), @"unable to open /nonexistent/1/ns/mnt: No such file or directory (os error 2)");
        insta::assert_snapshot!(error("mount-bpf-fs /a /b"), @r#"step mount-bpf-fs has no argument "/b""#);
        insta::assert_snapshot!(error("clean-state /a"), @r#"step clean-state has no argument "/a""#);
        insta::assert_snapshot!(error("sysctl-overwrites --sysctl-conf-dir"), @r#"step sysctl-overwrites has no argument "--sysctl-conf-dir""#);
        insta::assert_snapshot!(error("wait-for-kube-proxy --timeout soon"), @r#"step wait-for-kube-proxy has no argument "--timeout=soon""#);
    }
}
