//! The `CNI_*` variables of a call.

use crate::error::Error;
use api_client::Address;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// Parent folder of the deletion queue if the agent's address is no unix socket.
const RUNTIME_FOLDER: &str = "/var/run/cilium";
/// Cilium cannot build its temporary interface name from a shorter id; runtimes use 64 hex digits.
const MIN_CONTAINER_ID: usize = 5;
/// `IFNAMSIZ` without the final zero.
const MAX_INTERFACE_NAME: usize = 15;

/// A snapshot of the environment variables.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Reads the variables of this process.
    pub fn of_process() -> Self {
        Self::from_pairs(
            std::env::vars().filter(|(name, _)| name.starts_with("CNI_") || name == "CILIUM_SOCK"),
        )
    }

    /// Builds variables from pairs, for embedders and tests.
    pub fn from_pairs<N: Into<String>, V: Into<String>>(pairs: impl IntoIterator<Item = (N, V)>) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }

    /// Whether this is a CNI call, as opposed to a start from a terminal.
    pub fn has_command(&self) -> bool {
        self.value("CNI_COMMAND").is_some()
    }

    /// Returns a variable's value; an empty one counts as unset.
    fn value(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// A verb of the CNI specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Add,
    Del,
    Check,
    Status,
    Version,
    Gc,
}

impl Command {
    pub(crate) fn from_env(env: &Environment) -> Result<Self, Error> {
        match env.value("CNI_COMMAND") {
            Some("ADD") => Ok(Self::Add),
            Some("DEL") => Ok(Self::Del),
            Some("CHECK") => Ok(Self::Check),
            Some("STATUS") => Ok(Self::Status),
            Some("VERSION") => Ok(Self::Version),
            Some("GC") => Ok(Self::Gc),
            Some(other) => Err(Error::UnknownCommand { found: other.into() }),
            None => Err(Error::MissingEnv { names: "CNI_COMMAND".into() }),
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
            Self::Gc => "GC",
        }
    }

    /// Returns the variables that the verb requires. A DEL may lack the namespace, which may not exist any more.
    fn required(self) -> &'static [&'static str] {
        match self {
            Self::Add | Self::Check => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
            Self::Del => &["CNI_CONTAINERID", "CNI_IFNAME"],
            Self::Status | Self::Version | Self::Gc => &[],
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The parsed variables of a call.
#[derive(Clone, Debug)]
pub(crate) struct Invocation {
    pub(crate) command: Command,
    pub(crate) container_id: String,
    pub(crate) netns: Option<PathBuf>,
    pub(crate) interface: String,
    /// Folders that are searched for delegated plugins, in this order.
    pub(crate) plugin_path: Vec<PathBuf>,
    /// Address of the agent.
    pub(crate) agent: Address,
    args: String,
}

/// The pod as Kubernetes runtimes pass it in `CNI_ARGS`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodArgs {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
}

impl Invocation {
    pub(crate) fn from_env(command: Command, env: &Environment) -> Result<Self, Error> {
        let missing: Vec<_> =
            command.required().iter().copied().filter(|name| env.value(name).is_none()).collect();
        if !missing.is_empty() {
            return Err(Error::MissingEnv { names: missing.join(",") });
        }
        let text = |name| env.value(name).unwrap_or_default().to_owned();
        Ok(Self {
            command,
            container_id: text("CNI_CONTAINERID"),
            netns: env.value("CNI_NETNS").map(PathBuf::from),
            interface: text("CNI_IFNAME"),
            plugin_path: text("CNI_PATH")
                .split(':')
                .filter(|part| !part.is_empty())
                .map(PathBuf::from)
                .collect(),
            agent: Address::parse(env.value("CILIUM_SOCK").unwrap_or_default()),
            args: text("CNI_ARGS"),
        })
    }

    /// Validates the values as the specification's reference implementation does; the container id's length only for
    /// verbs that derive names from it.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        if !self.command.required().is_empty() {
            check_container_id(&self.container_id, self.command == Command::Add)?;
            check_interface(&self.interface)?;
        }
        Ok(())
    }

    /// Returns `CONTAINERID:IFNAME`, the id of this attachment.
    pub(crate) fn attachment(&self) -> String {
        format!("{}:{}", self.container_id, self.interface)
    }

    /// Returns the namespace's path; validation rejects ADD and CHECK without one.
    pub(crate) fn netns(&self) -> &Path {
        self.netns.as_deref().unwrap_or(Path::new(""))
    }

    /// Returns the folder of the agent's socket and of the deletion queue.
    pub(crate) fn runtime_folder(&self) -> &Path {
        match self.agent.path().and_then(Path::parent) {
            Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
            Some(folder) => folder,
            None => Path::new(RUNTIME_FOLDER),
        }
    }

    /// Whether the agent is starting: its folder exists, its socket does not yet.
    pub(crate) fn agent_is_starting(&self) -> bool {
        self.agent.path().is_some_and(|socket| !socket.exists()) && self.runtime_folder().is_dir()
    }

    /// Parses the pod from `CNI_ARGS` (`K=V;K=V`). Unknown keys are an error unless `IgnoreUnknown` is set.
    pub(crate) fn pod(&self) -> Result<PodArgs, Error> {
        let invalid = |reason| Error::InvalidEnv { name: "CNI_ARGS", found: self.args.clone(), reason };
        let mut pod = PodArgs::default();
        let mut ignore_unknown = false;
        let mut unknown = false;
        for pair in self.args.split(';').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| invalid("want KEY=VALUE;KEY=VALUE"))?;
            match key {
                "K8S_POD_NAME" => pod.name = value.into(),
                "K8S_POD_NAMESPACE" => pod.namespace = value.into(),
                "K8S_POD_UID" => pod.uid = value.into(),
                "K8S_POD_INFRA_CONTAINER_ID" => {}
                "IgnoreUnknown" => {
                    ignore_unknown = match value {
                        "1" | "true" => true,
                        "0" | "false" => false,
                        _ => return Err(invalid("IgnoreUnknown wants 1, 0, true or false")),
                    };
                }
                _ => unknown = true,
            }
        }
        if unknown && !ignore_unknown {
            return Err(invalid("a key is unknown and IgnoreUnknown=1 is not given"));
        }
        Ok(pod)
    }
}

fn check_container_id(id: &str, make: bool) -> Result<(), Error> {
    let invalid = |reason| Err(Error::InvalidEnv { name: "CNI_CONTAINERID", found: id.into(), reason });
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if !id.starts_with(|c: char| c.is_ascii_alphanumeric()) || !id.chars().all(word) {
        return invalid("want letters, digits, '_', '.', '-', the first a letter or digit");
    }
    if make && id.len() < MIN_CONTAINER_ID {
        return invalid("too short, at least 5 characters are needed");
    }
    Ok(())
}

fn check_interface(name: &str) -> Result<(), Error> {
    let invalid = |reason| Err(Error::InvalidEnv { name: "CNI_IFNAME", found: name.into(), reason });
    if name.len() > MAX_INTERFACE_NAME {
        return invalid("too long, at most 15 characters are possible");
    }
    if matches!(name, "." | "..") {
        return invalid("'.' and '..' are no interface names");
    }
    if name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace()) {
        return invalid("'/', ':' and white space are not possible in interface names");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invocation(args: &str) -> Invocation {
        let env = Environment::from_pairs([
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "0123456789"),
            ("CNI_NETNS", "/var/run/netns/p1"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", args),
            ("CILIUM_SOCK", "unix:///tmp/x/cilium.sock"),
        ]);
        Invocation::from_env(Command::Add, &env).unwrap()
    }

    #[test]
    fn socket_decides_the_runtime_folder() {
        let invocation = invocation("");
        assert_eq!(invocation.agent, Address::Unix("/tmp/x/cilium.sock".into()));
        assert_eq!(invocation.runtime_folder(), Path::new("/tmp/x"));
        assert_eq!(invocation.attachment(), "0123456789:eth0");
    }

    #[test]
    fn pod_words() {
        let pod =
            invocation("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p1;K8S_POD_UID=u;X=Y").pod();
        let want = PodArgs { name: "p1".into(), namespace: "default".into(), uid: "u".into() };
        assert_eq!(pod.unwrap(), want);
        assert_eq!(invocation("").pod().unwrap(), PodArgs::default());
        let error = invocation("K8S_POD_NAME=p1;COLOUR=red").pod().unwrap_err();
        insta::assert_snapshot!(error, @r#"invalid CNI_ARGS "K8S_POD_NAME=p1;COLOUR=red": a key is unknown and IgnoreUnknown=1 is not given"#);
        let error = invocation("K8S_POD_NAME").pod().unwrap_err();
        insta::assert_snapshot!(error, @r#"invalid CNI_ARGS "K8S_POD_NAME": want KEY=VALUE;KEY=VALUE"#);
    }
}
