//! Objects from the agent: `GET /apiary/k8s-<plural>`.

use anyhow::{Context as _, bail};
use api_client::escape;
use k8s_types::{Kind, ObjectMeta};
use serde::Deserialize;
use serde_json::Value;

use crate::client::Agent;

/// The requested objects.
pub(super) struct Question<'q> {
    pub(super) kind: Kind,
    pub(super) namespace: Option<&'q str>,
    pub(super) name: Option<&'q str>,
}

/// The agent's objects of a kind.
pub(super) struct List {
    /// Sources that have not completed their initial list.
    pub(super) pending: Vec<String>,
    /// By namespace and name.
    pub(super) objects: Vec<Held>,
}

/// An object.
pub(super) struct Held {
    pub(super) json: Vec<u8>,
    pub(super) object: Value,
    pub(super) meta: ObjectMeta,
}

/// Requests the objects from the agent.
pub(super) fn list(agent: &mut Agent, question: &Question<'_>) -> anyhow::Result<List> {
    #[derive(Deserialize)]
    struct Head {
        pending: Vec<String>,
    }
    let parameters = [("namespace", question.namespace), ("name", question.name)];
    let parameters =
        parameters.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", escape(value?))));
    let query = parameters.collect::<Vec<_>>().join("&");
    let plural = question.kind.plural();
    let answer = agent.call_plain("GET", &format!("/apiary/k8s-{plural}?{query}"))?;
    match answer.status {
        200 => {}
        404 => bail!("this agent has no table of {plural}"),
        _ => bail!("cannot list {plural}: {}", answer.words()),
    }
    let undecided = || format!("the agent's list of {plural} cannot be decoded");
    let mut lines = answer.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let head: Head = serde_json::from_slice(lines.next().unwrap_or_default()).with_context(undecided)?;
    let mut objects = lines.map(Held::read).collect::<Result<Vec<_>, _>>().with_context(undecided)?;
    // In the order of an API server's list.
    objects.sort_by_cached_key(|held| format!("{}/{}", held.meta.namespace, held.meta.name));
    Ok(List { pending: head.pending, objects })
}

impl Held {
    fn read(json: &[u8]) -> serde_json::Result<Held> {
        let object: Value = serde_json::from_slice(json)?;
        Ok(Held { json: json.to_vec(), meta: ObjectMeta::deserialize(&object["metadata"])?, object })
    }
}
