//! Client of the agent's REST API, limited to the requests of the plugin. Responses are parsed into structs of the few
//! required fields: most of the 8 kB of a configuration is skipped.

use crate::error::Error;
use api_client::{Address, Connection, Response, escape};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

/// Timeout of an ADD for an agent that is starting.
pub(crate) const ADD_PATIENCE: Duration = Duration::from_secs(30);
/// Timeout of CHECK and STATUS, and of a DEL before it is queued.
pub(crate) const SHORT_PATIENCE: Duration = Duration::from_millis(1500);
/// Interval between two attempts to connect.
const RETRY: Duration = Duration::from_millis(50);

/// `status` of `GET /config`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct AgentConfig {
    pub(crate) addressing: HostAddressing,
    #[serde(rename = "datapathMode")]
    pub(crate) datapath_mode: String,
    #[serde(rename = "deviceMTU")]
    pub(crate) device_mtu: u32,
    #[serde(rename = "routeMTU")]
    pub(crate) route_mtu: i64,
    #[serde(rename = "GROMaxSize")]
    pub(crate) gro_max_size: u32,
    #[serde(rename = "GSOMaxSize")]
    pub(crate) gso_max_size: u32,
    #[serde(rename = "GROIPv4MaxSize")]
    pub(crate) gro_ipv4_max_size: u32,
    #[serde(rename = "GSOIPv4MaxSize")]
    pub(crate) gso_ipv4_max_size: u32,
    #[serde(rename = "ipam-mode")]
    pub(crate) ipam_mode: String,
    #[serde(rename = "ipLocalReservedPorts")]
    pub(crate) ip_local_reserved_ports: String,
    #[serde(rename = "packetizationLayerPMTUDMode")]
    pub(crate) pmtud_mode: String,
    #[serde(rename = "enableBBRHostNamespaceOnly")]
    pub(crate) bbr_host_namespace_only: bool,
    #[serde(rename = "enableRouteMTUForCNIChaining")]
    pub(crate) route_mtu_for_chaining: bool,
}

/// The node's own addresses, which are the pods' gateways.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct HostAddressing {
    pub(crate) ipv4: Option<HostFamily>,
    pub(crate) ipv6: Option<HostFamily>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct HostFamily {
    pub(crate) enabled: bool,
    pub(crate) ip: String,
}

/// The response to `POST /ipam`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct IpamAnswer {
    pub(crate) address: AddressPair,
    #[serde(rename = "host-addressing")]
    pub(crate) host_addressing: HostAddressing,
    pub(crate) ipv4: FamilyAnswer,
    pub(crate) ipv6: FamilyAnswer,
}

/// Addressing of one family, as the endpoint needs it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct FamilyAnswer {
    #[serde(rename = "expiration-uuid")]
    pub(crate) expiration_uuid: String,
    #[serde(rename = "skip-masquerade")]
    pub(crate) skip_masquerade: bool,
}

/// Addresses with the pool and expiration timer of each.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct AddressPair {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) ipv4: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) ipv4_expiration_uuid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) ipv4_pool_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) ipv6: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) ipv6_expiration_uuid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) ipv6_pool_name: String,
}

/// Body of `PUT /endpoint/{id}`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct EndpointRequest<'a> {
    pub(crate) addressing: AddressPair,
    pub(crate) container_id: &'a str,
    pub(crate) container_interface_name: &'a str,
    pub(crate) container_netns_path: String,
    pub(crate) datapath_configuration: DatapathConfiguration,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) host_mac: String,
    pub(crate) interface_index: u32,
    pub(crate) interface_name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) k8s_namespace: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) k8s_pod_name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) k8s_uid: &'a str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) mac: String,
    pub(crate) netns_cookie: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) properties: BTreeMap<&'a str, bool>,
    pub(crate) state: &'a str,
    pub(crate) sync_build_endpoint: bool,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct DatapathConfiguration {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) external_ipam: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) require_arp_passthrough: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) require_egress_prog: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) require_routing: Option<bool>,
}

impl DatapathConfiguration {
    /// Returns the configuration of an interface that another plugin has made: it answers ARP itself, routes to it are its
    /// own, and packets from the host's stack meet policy at the interface.
    pub(crate) fn chained() -> Self {
        Self {
            external_ipam: true,
            require_arp_passthrough: true,
            require_egress_prog: true,
            require_routing: Some(false),
        }
    }
}

/// An endpoint of `GET /endpoint` and of the response to `PUT /endpoint/{id}`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Endpoint {
    pub(crate) status: EndpointStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct EndpointStatus {
    pub(crate) external_identifiers: ExternalIdentifiers,
    pub(crate) networking: EndpointNetworking,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct ExternalIdentifiers {
    pub(crate) cni_attachment_id: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct EndpointNetworking {
    pub(crate) interface_name: String,
    pub(crate) mac: String,
}

/// The result of a deletion.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Deletion {
    /// The agent has deleted all requested endpoints.
    Done,
    /// The agent found nothing to delete, or deleted with errors that a retry does not resolve.
    Settled(String),
    /// The agent cannot delete now; the call is retried or queued.
    Later(String),
}

/// A client of the agent.
#[derive(Debug)]
pub(crate) struct Agent {
    address: Address,
    connection: Option<Connection>,
}

impl Agent {
    pub(crate) fn new(address: &Address) -> Self {
        Self { address: address.clone(), connection: None }
    }

    /// Returns the agent's configuration; retries while the agent is starting.
    pub(crate) fn config(&mut self, patience: Duration) -> Result<AgentConfig, Error> {
        #[derive(Deserialize)]
        struct View {
            status: Option<AgentConfig>,
        }
        let action = "retrieve the configuration from the agent";
        let answer = self
            .patiently("/config", patience)
            .map_err(|source| Error::AgentUnreachable { address: self.address.to_string(), source })?;
        let view: View = parse(action, &expect(action, answer, &[200])?)?;
        view.status.ok_or(Error::Agent { action, reason: "the answer has no status".into() })
    }

    /// Requests `GET /healthz`; any status but 200 counts as unavailable.
    pub(crate) fn healthz(&mut self, patience: Duration) -> Result<(), String> {
        let answer = self.patiently("/healthz", patience).map_err(|error| error.to_string())?;
        if answer.status == 200 { Ok(()) } else { Err(answer.words()) }
    }

    /// Allocates addresses of all enabled families for `owner`; they expire unless an endpoint uses them.
    pub(crate) fn allocate(&mut self, owner: &str) -> Result<IpamAnswer, Error> {
        let action = "allocate an address from the agent";
        let path = format!("/ipam?owner={}", escape(owner));
        let answer = self.call(action, "POST", &path, &[("expiration", "true")], None)?;
        parse(action, &expect(action, answer, &[201])?)
    }

    pub(crate) fn release(&mut self, ip: &str, pool: &str) -> Result<(), Error> {
        let action = "release an address";
        let path = format!("/ipam/{ip}?pool={}", escape(pool));
        let answer = self.call(action, "DELETE", &path, &[], None)?;
        expect(action, answer, &[200, 404]).map(drop)
    }

    /// Creates the endpoint of an attachment. An existing one stems from an earlier ADD of the same attachment, whose
    /// interface no longer exists: it is replaced.
    pub(crate) fn create_endpoint(
        &mut self,
        attachment: &str,
        request: &EndpointRequest<'_>,
    ) -> Result<Endpoint, Error> {
        let action = "create the endpoint";
        let body = serde_json::to_vec(request)
            .map_err(|error| Error::Agent { action, reason: error.to_string() })?;
        let path = attachment_path(attachment);
        let mut answer = self.call(action, "PUT", &path, &[], Some(&body))?;
        let known = format!("CNI attachment ID {attachment} already exists");
        if answer.status == 400 && answer.words().contains(&known) {
            drop(self.delete_attachment(attachment));
            answer = self.call(action, "PUT", &path, &[], Some(&body))?;
        }
        let body = expect(action, answer, &[201])?;
        if body.is_empty() { Ok(Endpoint::default()) } else { parse(action, &body) }
    }

    pub(crate) fn endpoints(&mut self) -> Result<Vec<Endpoint>, Error> {
        let action = "list the endpoints";
        let answer = self.call(action, "GET", "/endpoint", &[], None)?;
        if answer.status == 404 {
            return Ok(Vec::new());
        }
        parse(action, &expect(action, answer, &[200])?)
    }

    /// Whether the agent reports the attachment's endpoint as healthy.
    pub(crate) fn endpoint_health(&mut self, attachment: &str) -> Result<bool, String> {
        #[derive(Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        #[derive(Default)]
        struct View {
            overall_health: String,
        }
        let path = attachment_path(attachment) + "/healthz";
        let answer = self.request("GET", &path, &[], None).map_err(|error| error.to_string())?;
        if answer.status != 200 {
            return Err(answer.words());
        }
        let view: View = serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
        Ok(view.overall_health != "Failure")
    }

    /// Deletes the endpoints that `body` selects (`DELETE /endpoint`).
    pub(crate) fn delete_endpoints(&mut self, body: &[u8]) -> Deletion {
        let answer = self.request("DELETE", "/endpoint", &[], Some(body));
        deletion(answer)
    }

    /// Deletes the endpoint of one attachment.
    pub(crate) fn delete_attachment(&mut self, attachment: &str) -> Deletion {
        let answer = self.request("DELETE", &attachment_path(attachment), &[], None);
        deletion(answer)
    }

    /// Whether the last request left an open connection, which shows that an agent is running, whatever its answer.
    pub(crate) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    fn call(
        &mut self,
        action: &'static str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> Result<Response, Error> {
        self.request(method, path, headers, body)
            .map_err(|error| Error::Agent { action, reason: error.to_string() })
    }

    /// Requests `GET path`, with retries until a response arrives or `patience` has passed.
    fn patiently(&mut self, path: &str, patience: Duration) -> io::Result<Response> {
        let begin = Instant::now();
        loop {
            match self.request("GET", path, &[], None) {
                Err(_) if begin.elapsed() + RETRY < patience => std::thread::sleep(RETRY),
                answer => return answer,
            }
        }
    }

    fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> io::Result<Response> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(&self.address)?,
        };
        let answer = connection.call(method, &format!("/v1{path}"), headers, body)?;
        if answer.keep_alive {
            self.connection = Some(connection);
        }
        Ok(answer)
    }
}

/// Returns the path of the endpoint of `CONTAINERID:IFNAME`; the colon is not escaped.
fn attachment_path(attachment: &str) -> String {
    let parts: Vec<_> = attachment.split(':').map(escape).collect();
    format!("/endpoint/cni-attachment-id:{}", parts.join(":"))
}

fn deletion(answer: io::Result<Response>) -> Deletion {
    match answer {
        Ok(answer) if answer.status == 200 => Deletion::Done,
        Ok(answer) if matches!(answer.status, 429 | 503) => Deletion::Later(answer.words()),
        Ok(answer) => Deletion::Settled(answer.words()),
        Err(error) => Deletion::Later(error.to_string()),
    }
}

fn expect(action: &'static str, answer: Response, good: &[u16]) -> Result<Vec<u8>, Error> {
    if good.contains(&answer.status) {
        return Ok(answer.body);
    }
    Err(Error::Agent { action, reason: answer.words() })
}

fn parse<'a, T: Deserialize<'a>>(action: &'static str, body: &'a [u8]) -> Result<T, Error> {
    serde_json::from_slice(body)
        .map_err(|error| Error::Agent { action, reason: format!("the answer cannot be decoded: {error}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> Response {
        Response { status, body: body.into(), keep_alive: true }
    }

    #[test]
    fn deletions() {
        assert_eq!(deletion(Ok(answer(200, ""))), Deletion::Done);
        assert_eq!(
            deletion(Ok(answer(404, "\"endpoints not found\""))),
            Deletion::Settled("status 404: endpoints not found".into())
        );
        assert_eq!(deletion(Ok(answer(503, "\"wait\""))), Deletion::Later("status 503: wait".into()));
        assert!(matches!(deletion(Err(io::ErrorKind::ConnectionRefused.into())), Deletion::Later(_)));
    }
}
