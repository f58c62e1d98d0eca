//! `agent hive ...`: the composition of the agent and the timeline of its start; `agent config drift`.

use std::io;

use api::ApiConfig;
use api_client::{Address, Connection};
use hive::Hive;

/// Returns the output of these command words; `None` if they are no command of this module.
pub(crate) fn of(hive: &Hive, words: &[&str]) -> Option<io::Result<String>> {
    let rest = match words {
        ["config", "drift"] => return Some(ask(hive, "/apiary/drift")),
        ["hive", rest @ ..] => rest,
        _ => return None,
    };
    Some(match rest {
        [] => Ok(hive.tree()),
        ["dot-graph"] => Ok(hive.dot()),
        ["mermaid"] => Ok(hive.mermaid()),
        ["json"] => Ok(hive.json()),
        ["timeline"] => ask(hive, "/apiary/timeline"),
        _ => return None,
    })
}

/// Requests a page from the running agent.
fn ask(hive: &Hive, page: &str) -> io::Result<String> {
    let config = hive.config::<ApiConfig>().map_err(io::Error::other)?;
    let address = Address::Unix(config.socket_path);
    let ask = || {
        let answer = Connection::open(&address)?.call("GET", page, &[], None)?;
        match answer.status {
            200 => String::from_utf8(answer.body).map_err(io::Error::other),
            _ => Err(io::Error::other(answer.words())),
        }
    };
    ask().map_err(|error| io::Error::new(error.kind(), format!("no agent answers at {address}: {error}")))
}
