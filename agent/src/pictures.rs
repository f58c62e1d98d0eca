//! `agent hive ...`: what the agent is made of, and how it started.

use std::io;
use std::path::PathBuf;

use api_client::{Address, Connection};
use hive::Hive;

/// The picture that these words ask for; `None` if they are no such question.
pub(crate) fn of(hive: &Hive, words: &[&str]) -> Option<io::Result<String>> {
    let ["hive", rest @ ..] = words else { return None };
    Some(match rest {
        [] => Ok(hive.tree()),
        ["dot-graph"] => Ok(hive.dot()),
        ["mermaid"] => Ok(hive.mermaid()),
        ["json"] => Ok(hive.json()),
        ["timeline"] => timeline(hive),
        _ => return None,
    })
}

/// The start of the agent that is running.
fn timeline(hive: &Hive) -> io::Result<String> {
    let path = hive.settings().get("socket-path").map(|setting| PathBuf::from(&setting.value));
    let address = path.map_or_else(Address::from_env, Address::Unix);
    let ask = || {
        let answer = Connection::open(&address)?.call("GET", "/apiary/timeline", &[], None)?;
        match answer.status {
            200 => String::from_utf8(answer.body).map_err(io::Error::other),
            _ => Err(io::Error::other(answer.words())),
        }
    };
    ask().map_err(|error| io::Error::new(error.kind(), format!("no agent answers at {address}: {error}")))
}
