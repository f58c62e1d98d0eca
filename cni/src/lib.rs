//! The CNI plugin: small, static, talks to the agent's socket only.
//!
//! **Owns** nothing that outlives a call but the deletion queue (`deleteQueue/` beside the agent's socket), in
//! which a DEL waits while the agent is away.
//! **Needs** the agent's REST API on its unix socket (`CILIUM_SOCK`, default `/var/run/cilium/cilium.sock`) and
//! `CAP_NET_ADMIN` + `CAP_SYS_ADMIN` on the node.
//! **Provides** the verbs of the CNI specification 0.1.0 to 1.1.0: ADD, DEL, CHECK, STATUS, VERSION, GC. It is
//! installed as `apiary-cni` and, for configurations written for Cilium, as `cilium-cni`.
//!
//! A call is one process: it reads `CNI_*` variables and a network configuration on stdin, asks the agent, works
//! over rtnetlink, and writes one JSON document. Everything is synchronous; there is no runtime in here.
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
//! - The container's end of the pair is born inside the pod's namespace under its final name, in one request.
//!   Creating it on the host and moving it costs a grace period of the kernel (16 ms).
//! - The host's end stays down until the agent has answered `PUT /endpoint`, so no packet of a pod is ever seen
//!   by a datapath that does not know it yet.
//! - DEL answers when the agent has let go of the endpoint; a child process removes the link behind the answer,
//!   by its interface index, so that a repeated ADD or DEL is right at once.
//! - CHECK and STATUS answer within 1.5 s when the agent is away, not after 30 s: the runtime asks again anyway.
//! - GC does what the specification asks: attachments that the runtime no longer knows are deleted in the agent.
//!   Cilium's plugin ignores the verb.
//!
//! Not there yet: chaining behind another plugin, netkit, the IPAM of clouds. An ADD refuses each by its name.

mod add;
mod agent;
mod check;
mod config;
mod del;
mod delegate;
mod error;
mod gc;
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

/// Runs one CNI call and returns what belongs on stdout: a result, or nothing for the verbs without one.
///
/// # Errors
/// Every error carries the code of the CNI specification, see [`Error::code`]; nothing that the call began is
/// left behind, except where the text says so.
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

/// Removes the link with interface index `index` in the namespace that is open on stdin: what the child process
/// does behind the answer of a DEL.
///
/// # Errors
/// When the namespace cannot be entered or the kernel refuses; a link that is gone already is success.
pub fn remove_link_behind(index: u32) -> Result<(), Error> {
    link::remove_from_stdin_namespace(index)
}

/// What the plugin says about itself when it is started by hand, without `CNI_COMMAND`.
pub fn about() -> String {
    format!(
        "CNI plugin of the Cilium-compatible agent Apiary\nCNI protocol versions supported: {}",
        version::list()
    )
}
