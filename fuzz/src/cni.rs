//! The input of a runtime to the CNI plugin: variables and the network configuration. No call has an effect.

use apiary_cni::{Environment, testing};

use crate::input::{parts, text};

/// Lines `NAME=value`, stdin, and the result of another plugin.
pub(crate) fn run(data: &[u8]) {
    let [variables, stdin, delegated] = parts(data);
    let variables = text(variables);
    let pairs = variables.lines().filter_map(|line| line.split_once('='));
    let environment = Environment::from_pairs(pairs);
    match testing::read(&environment, stdin) {
        // The error document must be valid JSON, since the runtime parses it.
        Err(error) => {
            let document: serde_json::Value = serde_json::from_str(&error.to_json()).unwrap();
            assert!(document["code"].as_u64().is_some_and(|code| code > 0), "{document}");
            assert!(document["msg"].as_str().is_some_and(|msg| !msg.is_empty()), "{document}");
        }
        Ok(call) => {
            // These become parts of paths and of names in the kernel.
            assert!(call.interface.len() <= 15 && !call.interface.contains(['/', ':']), "{call:?}");
            assert!(!call.container_id.contains(['/', '\0']), "{call:?}");
        }
    }
    testing::read_delegated(delegated);
}
