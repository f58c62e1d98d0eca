//! `GET /ip`: the table as the REST API shows it.

use api::{Request, Response};
use api_models::{IpListEntry, IpListEntryMetadata, Required};
use datapath_abi::identity;
use ipnetwork::IpNetwork;
use statedb::Table;

use crate::entry::{Claim, Entry};

/// The answer, for all prefixes, those with their address inside `?cidr=`, or those whose identity has the labels of
/// the body.
pub(crate) fn get_ip(table: &Table<Entry>, request: &Request) -> Response {
    let within = match request.query("cidr").map(|text| (text, text.parse::<IpNetwork>())) {
        None => None,
        Some((text, Ok(cidr))) if text.contains('/') => Some(cidr),
        Some((text, _)) => return Response::error(400, format!("invalid CIDR address: {text}")),
    };
    let labels: Vec<String> = match request.body.is_empty() || within.is_some() {
        true => Vec::new(),
        false => match serde_json::from_slice::<Option<Vec<String>>>(&request.body) {
            Ok(labels) => labels.unwrap_or_default(),
            Err(error) => {
                return Response::error(400, format!("parsing labels body failed, because {error}"));
            }
        },
    };
    let snapshot = table.snapshot();
    let wanted = |entry: &Entry| {
        within.is_none_or(|cidr| cidr.contains(entry.prefix.network()))
            && has_labels(entry.winner().mapping.identity, &labels)
    };
    let list: Vec<IpListEntry> =
        table.all(&snapshot).filter(|entry| wanted(entry)).map(|e| model(e)).collect();
    match list.is_empty() {
        true => Response::empty(404),
        false => Response::json(200, &list),
    }
}

/// Reserved identities have one label each; others have none here yet.
fn has_labels(numeric: u32, wanted: &[String]) -> bool {
    let own = identity::label(numeric);
    wanted.iter().all(|text| {
        let (source, key) = text.split_once(':').unwrap_or(("any", text));
        matches!(source, "reserved" | "any") && own == Some(key)
    })
}

fn model(entry: &Entry) -> IpListEntry {
    let Claim { source, mapping, .. } = entry.winner();
    IpListEntry {
        cidr: Required(entry.prefix.to_string()),
        identity: Required(mapping.identity.into()),
        host_ip: mapping.host_ip.or(mapping.tunnel).map(|ip| ip.to_string()).unwrap_or_default(),
        encrypt_key: mapping.encrypt_key.into(),
        metadata: mapping.pod.as_ref().map(|pod| IpListEntryMetadata {
            name: pod.name.to_string(),
            namespace: pod.namespace.to_string(),
            source: source.name().to_owned(),
        }),
    }
}
