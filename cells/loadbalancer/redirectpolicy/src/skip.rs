//! The table `desired-skiplbmap`: pods that skip redirections.

use std::collections::{BTreeMap, BTreeSet};

use loadbalancer::{LbAddress, ServiceName};
use reconciler::{Status, StatusKind};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use statedb::{Index, IndexDef, Query, TableDisplay, TableSpec, age};

use crate::skip_map::SkipKey;

/// A pod, with the frontends whose redirection it skips.
#[derive(Debug, Clone)]
pub struct DesiredSkip {
    /// `NAMESPACE/NAME`.
    pub pod: String,
    /// The last policy that requests it.
    pub policy: Option<ServiceName>,
    /// Frontends by the services that represent the policies.
    pub skips: BTreeMap<ServiceName, Vec<LbAddress>>,
    /// Those of them that are in the map.
    pub reconciled: BTreeSet<LbAddress>,
    /// The cookie of the pod's network namespace; no entry is written before it is known.
    pub netns_cookie: Option<u64>,
    /// The state of its reconciliation.
    pub status: Status,
}

impl DesiredSkip {
    /// Returns the row of a pod without skips.
    pub(crate) fn new(pod: String) -> DesiredSkip {
        DesiredSkip {
            pod,
            policy: None,
            skips: BTreeMap::new(),
            reconciled: BTreeSet::new(),
            netns_cookie: None,
            status: Status::unset("the pod's network namespace is not known yet"),
        }
    }

    /// Returns a query for the row of `NAMESPACE/NAME`.
    pub fn by_pod(pod: &str) -> Query<DesiredSkip> {
        Query::primary(pod)
    }

    /// Returns all frontends.
    pub(crate) fn addresses(&self) -> BTreeSet<LbAddress> {
        self.skips.values().flatten().copied().collect()
    }

    /// Returns the desired map entries.
    pub(crate) fn keys(&self) -> BTreeSet<SkipKey> {
        let Some(cookie) = self.netns_cookie else { return BTreeSet::new() };
        let key = |address: LbAddress| SkipKey { cookie, ip: address.ip, port: address.port };
        self.addresses().into_iter().map(key).collect()
    }

    /// Returns the row with new desired values; `None` if nothing changes.
    pub(crate) fn with(
        &self,
        policy: Option<ServiceName>,
        skips: BTreeMap<ServiceName, Vec<LbAddress>>,
        netns_cookie: Option<u64>,
    ) -> Option<DesiredSkip> {
        if (&self.policy, &self.skips, self.netns_cookie) == (&policy, &skips, netns_cookie) {
            return None;
        }
        // Without a cookie there is nothing to write, but possibly something to delete.
        let waits = netns_cookie.is_none() && self.netns_cookie.is_none() && !skips.is_empty();
        let status = if waits { self.status.clone() } else { Status::pending() };
        Some(DesiredSkip { policy, skips, netns_cookie, status, ..self.clone() })
    }
}

const BY_POLICY: Index<DesiredSkip, str> = Index::new("lrp-id", |row, keys| {
    keys.extend(row.policy.iter().map(ServiceName::as_str));
});

/// Addresses as keys of an object without values, as Go serializes a set.
struct Set<'a>(&'a BTreeSet<LbAddress>);

impl Serialize for Set<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for address in self.0 {
            map.serialize_entry(&address.to_string(), &BTreeMap::<(), ()>::new())?;
        }
        map.end()
    }
}

impl Serialize for DesiredSkip {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Model<'r> {
            pod_namespaced_name: &'r str,
            #[serde(rename = "LRPID")]
            policy: &'r str,
            skip_redirect_for_frontends: BTreeMap<&'r str, &'r [LbAddress]>,
            reconciled_addrs: Set<'r>,
            netns_cookie: Option<u64>,
            status: &'r Status,
        }
        let skips = self.skips.iter().map(|(service, addresses)| (service.as_str(), addresses.as_slice()));
        let model = Model {
            pod_namespaced_name: &self.pod,
            policy: self.policy.as_ref().map(ServiceName::as_str).unwrap_or_default(),
            skip_redirect_for_frontends: skips.collect(),
            reconciled_addrs: Set(&self.reconciled),
            netns_cookie: self.netns_cookie,
            status: &self.status,
        };
        model.serialize(serializer)
    }
}

/// A row in the input format.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "lowercase")]
struct Written {
    podnamespacedname: String,
    lrpid: String,
    skipredirectforfrontends: Option<BTreeMap<String, Option<Vec<String>>>>,
    netnscookie: Option<u64>,
    status: WrittenStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WrittenStatus {
    kind: String,
}

fn read(value: serde_json::Value) -> serde_json::Result<DesiredSkip> {
    use serde::de::Error;
    let written: Written = serde_json::from_value(value)?;
    let name = |text: &str| match text.split_once('/') {
        Some((namespace, name)) => Ok(ServiceName::new(namespace, name)),
        None => Err(serde_json::Error::custom(format!("'{text}' is not NAMESPACE/NAME"))),
    };
    let mut row = DesiredSkip::new(written.podnamespacedname);
    if !written.lrpid.is_empty() {
        row.policy = Some(name(&written.lrpid)?);
    }
    for (service, addresses) in written.skipredirectforfrontends.unwrap_or_default() {
        let read = |text: &String| text.parse::<LbAddress>().map_err(serde_json::Error::custom);
        let addresses = addresses.unwrap_or_default().iter().map(read).collect::<Result<_, _>>()?;
        row.skips.insert(name(&service)?, addresses);
    }
    row.netns_cookie = written.netnscookie;
    row.status = match written.status.kind.as_str() {
        "Pending" | "Refreshing" => Status::pending(),
        "Done" => Status::done(),
        "Error" => Status::failed("written by hand"),
        "" => row.status,
        other => return Err(serde_json::Error::custom(format!("status.kind: '{other}' is unknown"))),
    };
    Ok(row)
}

impl TableSpec for DesiredSkip {
    const NAME: &'static str = "desired-skiplbmap";
    const PRIMARY: &'static str = "pod-name";
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        &self.pod
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_POLICY.def()]
    }
}

impl TableDisplay for DesiredSkip {
    const FROM_VALUE: Option<statedb::FromValue<Self>> = Some(read);

    fn columns() -> &'static [&'static str] {
        &["Pod", "LocalRedirectPolicy", "SkipRedirects", "NetnsCookie", "Status", "Since"]
    }

    fn row(&self) -> Vec<String> {
        let mut skips: Vec<String> = self.addresses().iter().map(ToString::to_string).collect();
        skips.sort();
        vec![
            self.pod.clone(),
            self.policy.as_ref().map(ToString::to_string).unwrap_or_default(),
            skips.join(", "),
            self.netns_cookie.map_or_else(|| "<unset>".to_owned(), |cookie| cookie.to_string()),
            match self.status.kind() {
                StatusKind::Unset => String::new(),
                kind => kind.to_string(),
            },
            age::since(self.status.updated_at()),
        ]
    }
}
