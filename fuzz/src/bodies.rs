//! The models of the REST API: a parsed body must survive a round trip.

use std::fmt::Debug;

use api_models as models;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::input::parts;

/// The check of a model of requests, by name; models of responses are parsed by the clients.
type Check = fn(&[u8]) -> bool;

macro_rules! checks {
    ($($model:ident)*) => {
        &[$((stringify!($model), round_trip::<models::$model> as Check)),*]
    };
}

const MODELS: &[(&str, Check)] = checks! {
    EndpointChangeRequest EndpointBatchDeleteRequest EndpointConfigurationSpec LabelConfigurationSpec
    DaemonConfigurationSpec Labels Endpoint StatusResponse IpamResponse DaemonConfiguration EndpointHealth
};

/// The model's name on the first line, the body after it.
pub(crate) fn run(data: &[u8]) {
    let [name, body] = parts(data);
    let known = MODELS.iter().filter(|(known, _)| known.as_bytes() == name);
    for (_, check) in known {
        check(body);
    }
}

fn round_trip<T: DeserializeOwned + Serialize + PartialEq + Debug>(body: &[u8]) -> bool {
    let Ok(model) = serde_json::from_slice::<T>(body) else { return false };
    let text = serde_json::to_string(&model).unwrap();
    let again: T = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
    // Compared as text, because an empty value and an absent one are equal on the wire.
    assert_eq!(serde_json::to_string(&again).unwrap(), text);
    true
}
