//! `GET /ip`: the table as models of the REST API.

use api::{Request, Response};
use api_models::{IpListEntry, IpListEntryMetadata, Required};
use identity::Identity;
use ipnetwork::IpNetwork;
use labels::{Label, LabelArray};
use statedb::Table;

use crate::entry::{Claim, Entry};

/// Returns the response for all prefixes, for those with an address inside `?cidr=`, or for those with an identity that
/// has the labels of the body.
pub(crate) fn get_ip(
    table: &Table<Entry>,
    identities: Option<&Table<Identity>>,
    request: &Request,
) -> Response {
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
    // Without a table of identities only the labels of reserved ones are known.
    let labels_of = |numeric: u32| match identities {
        Some(identities) => identities.get(&snapshot, Identity::by_id(numeric)).map(|row| row.labels.clone()),
        None => {
            datapath_abi::identity::label(numeric).map(|key| [Label::reserved(key)].into_iter().collect())
        }
    };
    let wanted = |entry: &Entry| {
        within.is_none_or(|cidr| cidr.contains(entry.prefix.network()))
            && (labels.is_empty() || has_labels(&labels_of(entry.identity()), &labels))
    };
    let list: Vec<IpListEntry> =
        table.all(&snapshot).filter(|entry| wanted(entry)).map(|e| model(e)).collect();
    match list.is_empty() {
        true => Response::empty(404),
        false => Response::json(200, &list),
    }
}

/// Whether an identity has all of the labels; a label without a source matches any source.
fn has_labels(own: &Option<LabelArray>, wanted: &[String]) -> bool {
    let Some(own) = own else { return false };
    wanted.iter().map(|text| Label::parse(text)).all(|want| {
        let any = matches!(want.source.as_str(), labels::ANY | labels::UNSPECIFIED);
        own.of_key(&want.key).any(|have| have.value == want.value && (any || have.source == want.source))
    })
}

fn model(entry: &Entry) -> IpListEntry {
    let Claim { source, mapping, .. } = entry.winner();
    IpListEntry {
        cidr: Required(entry.prefix.to_string()),
        identity: Required(entry.identity().into()),
        host_ip: mapping.host_ip().or(mapping.tunnel()).map(|ip| ip.to_string()).unwrap_or_default(),
        encrypt_key: mapping.encrypt_key.into(),
        metadata: mapping.pod().map(|pod| IpListEntryMetadata {
            name: pod.name.to_string(),
            namespace: pod.namespace.to_string(),
            source: source.name().to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_those_of_the_identity() {
        let own: LabelArray = ["k8s:app=web", "k8s:tier=a"].into_iter().map(Label::parse).collect();
        let has = |wanted: &[&str]| {
            has_labels(&Some(own.clone()), &wanted.iter().map(|&text| text.to_owned()).collect::<Vec<_>>())
        };
        assert!(has(&["k8s:app=web"]) && has(&["app=web", "any:tier=a"]) && has(&[]));
        assert!(!has(&["k8s:app=db"]) && !has(&["reserved:app=web"]) && !has(&["k8s:app"]));
        assert!(!has_labels(&None, &["k8s:app=web".to_owned()]));
    }
}
