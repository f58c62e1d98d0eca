//! DEL: deletes the container's endpoint in the agent, then its interface.

use crate::agent::{Agent, Deletion};
use crate::config::NetworkConfig;
use crate::delegate;
use crate::error::Error;
use crate::invocation::Invocation;
use crate::link::{self, Links};
use crate::log::Log;
use crate::netns::NetNs;
use crate::plan;
use crate::queue::DeletionQueue;
use serde_json::json;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Timeout of retries after a refused connection, before and while the queue is locked.
const PATIENCE: Duration = Duration::from_millis(1500);
const RETRY: Duration = Duration::from_millis(50);
/// The timeout for a starting agent, whose folder exists but whose socket does not.
const START_PATIENCE: Duration = Duration::from_secs(15);

/// Runs a DEL. It fails only if a retry can help, because runtimes repeat a failed DEL for a long time. The interface of
/// a chained network stays: the plugin that has made it removes it next.
pub(crate) fn run(invocation: &Invocation, config: &NetworkConfig, log: &mut Log) -> Result<(), Error> {
    // Only validates `CNI_ARGS`: the attachment is identified by the container.
    invocation.pod()?;
    let body = json!({ "container-id": invocation.container_id }).to_string();
    delete_endpoint(invocation, body.as_bytes(), log)?;
    if config.is_chained() {
        return Ok(());
    }
    if let Some(plugin) = config.ipam_plugin() {
        delegate::run(plugin, "DEL", invocation, config)?;
    }
    remove_interface(invocation, log)
}

/// Deletes the endpoint in the agent, or queues the deletion.
fn delete_endpoint(invocation: &Invocation, body: &[u8], log: &mut Log) -> Result<(), Error> {
    let mut agent = Agent::new(&invocation.agent);
    wait_for_start(invocation);
    let mut ask = |patience| match send_deletion(&mut agent, body, patience) {
        Deletion::Done => Ok(true),
        Deletion::Settled(reason) => {
            log.warning(&format!("the agent deleted nothing or with errors: {reason}"));
            Ok::<_, Error>(true)
        }
        Deletion::Later(reason) => {
            log.warning(&format!("the agent cannot delete now: {reason}"));
            Ok(false)
        }
    };
    if ask(PATIENCE)? {
        return Ok(());
    }
    // The agent may have restarted and drained the queue in the meantime. Retry with the lock held, which keeps it from
    // draining: a deletion that is queued now cannot be missed.
    let queue = DeletionQueue::lock(invocation.runtime_folder())?;
    if ask(PATIENCE)? {
        return Ok(());
    }
    queue.push(body)
}

/// Sends the deletion, with retries while the connection is refused.
fn send_deletion(agent: &mut Agent, body: &[u8], patience: Duration) -> Deletion {
    let begin = Instant::now();
    loop {
        match agent.delete_endpoints(body) {
            Deletion::Later(reason) if !agent.is_connected() => {
                if begin.elapsed() + RETRY > patience {
                    return Deletion::Later(reason);
                }
                sleep(RETRY);
            }
            settled => return settled,
        }
    }
}

/// Waits for the socket of a starting agent.
fn wait_for_start(invocation: &Invocation) {
    let begin = Instant::now();
    while invocation.agent_is_starting() && begin.elapsed() < START_PATIENCE {
        sleep(RETRY);
    }
}

/// Removes the pair in the background. It is found by the container's end or, if its namespace is gone or cannot be
/// entered, by the host's.
fn remove_interface(invocation: &Invocation, log: &mut Log) -> Result<(), Error> {
    let container = match &invocation.netns {
        Some(path) => NetNs::open_if_there(path)?,
        None => None,
    };
    let found = match &container {
        Some(netns) => netns.enter(|| Links::here()?.index(&invocation.interface)),
        None => Ok(None),
    };
    let index = found.unwrap_or_else(|error| {
        log.warning(&format!("looking for the host's end of the interface instead: {error}"));
        None
    });
    let removed = match (&container, index) {
        (Some(netns), Some(index)) => remove(netns, index),
        _ => remove_host_end(&plan::host_interface(&invocation.attachment())),
    };
    if let Err(error) = removed {
        log.warning(&format!("the interface is not deleted: {error}"));
    }
    Ok(())
}

fn remove_host_end(host_interface: &str) -> Result<(), Error> {
    let Some(index) = Links::here()?.index(host_interface)? else { return Ok(()) };
    remove(&NetNs::open(Path::new("/proc/self/ns/net"))?, index)
}

/// Removes the link in a child process, or synchronously if none can be started.
fn remove(netns: &NetNs, index: u32) -> Result<(), Error> {
    link::remove_behind(netns.file(), index).or_else(|_| netns.enter(|| Links::here()?.remove(index)))
}
