//! The CNI plugin: small, static, and a client of the agent's socket only.
//!
//! **Owns** no state that outlives a call but the deletion queue (`deleteQueue/` next to the agent's socket), in which
//! a DEL is stored while the agent is down.
//! **Needs** the agent's REST API on its unix socket (`CILIUM_SOCK`, default `/var/run/cilium/cilium.sock`) and
//! `CAP_NET_ADMIN` + `CAP_SYS_ADMIN` on the node.
//! **Provides** the verbs of the CNI specification 0.1.0 to 1.1.0: ADD, DEL, CHECK, STATUS, VERSION, GC. It is
//! installed as `apiary-cni` and, for configurations written for Cilium, as `cilium-cni`.
//!
//! The steps of the agent's pod that would need a shell are in the same binary ([`init`]).
//!
//! A call is one process: it reads `CNI_*` variables and a network configuration on stdin, sends requests to the agent,
//! uses rtnetlink, and writes one JSON document. Everything is synchronous, without an async runtime.
//!
//! ```
//! use apiary_cni::{Environment, run};
//!
//! let env = Environment::from_pairs([("CNI_COMMAND", "VERSION")]);
//! let answer = run(&env, br#"{"cniVersion":"1.1.0"}"#).unwrap();
//! assert!(answer.unwrap().contains("supportedVersions"));
//! ```
//!
//! Differences from Cilium's plugin:
//! - The container's end of the pair is created inside the pod's namespace under its final name, in one request.
//!   Creating it on the host and moving it costs an RCU grace period of the kernel (16 ms).
//! - The host's end stays down until the agent has responded to `PUT /endpoint`, so the datapath sees no packet of a
//!   pod before its endpoint exists.
//! - DEL returns when the agent has released the endpoint; a child process removes the link afterwards, by its
//!   interface index, so that a repeated ADD or DEL succeeds immediately.
//! - CHECK and STATUS return within 1.5 s when the agent is down, not after 30 s: the runtime retries anyway.
//! - GC is implemented as specified: attachments that the runtime no longer has are deleted in the agent. Cilium's
//!   plugin ignores the verb.
//!
//! - A chained ADD takes the interface that the runtime names, if it is a veth, before any other veth of the pod, and an
//!   address of the previous result before others of the interface. Its peer must be a link of the node.
//!
//! Not implemented yet: netkit, the IPAM of clouds. An ADD refuses each by its name.

mod add;
mod agent;
mod chain;
mod check;
mod config;
mod del;
mod delegate;
mod error;
mod gc;
pub mod init;
mod invocation;
mod link;
mod log;
mod netns;
mod plan;
mod queue;
mod result;
mod status;
mod sysctl;
#[cfg(feature = "test-util")]
pub mod testing;
mod version;

pub use error::Error;
pub use invocation::Environment;

use config::NetworkConfig;
use invocation::{Command, Invocation};

/// Runs one CNI call and returns the document for stdout: a result, or nothing for verbs without one.
///
/// # Errors
/// Every error has a code of the CNI specification, see [`Error::code`]; partial changes are rolled back, except where
/// the text of the error reports otherwise.
pub fn run(env: &Environment, stdin: &[u8]) -> Result<Option<String>, Error> {
    let command = Command::from_env(env)?;
    if command == Command::Version {
        return Ok(Some(version::report()));
    }
    let invocation = Invocation::from_env(command, env)?;
    let config = NetworkConfig::parse(stdin)?;
    config.check_version(command)?;
    invocation.validate()?;
    let mut log = log::Log::open(&config, &invocation);
    let answer = match command {
        Command::Add => add::run(&invocation, &config, &mut log).map(Some),
        Command::Del => del::run(&invocation, &config, &mut log).map(|()| None),
        Command::Check => check::run(&invocation, &config).map(|()| None),
        Command::Status => status::run(&invocation, &config).map(|()| None),
        Command::Gc => gc::run(&invocation, &config, &mut log).map(|()| None),
        Command::Version => Ok(None),
    };
    if let Err(error) = &answer {
        log.error(&format!("{command} failed: {error}"));
    }
    answer
}

/// Removes the link with interface index `index` in the namespace that is open on stdin: the task of the child process
/// that outlives a DEL.
///
/// # Errors
/// If the namespace cannot be entered or the kernel refuses; a link that does not exist is success.
pub fn remove_link_behind(index: u32) -> Result<(), Error> {
    link::remove_from_stdin_namespace(index)
}

/// Returns the text for a start by hand, without `CNI_COMMAND`.
pub fn about() -> String {
    format!(
        "CNI plugin of the Cilium-compatible agent Apiary\nCNI protocol versions supported: {}",
        version::list()
    )
}
