//! The knowledge of the node that the proxy needs, as a trait.

use std::net::{IpAddr, SocketAddr};

use fqdn::Lookup;
use futures::future::BoxFuture;
use labels::Label;

use crate::observation::Observation;

/// A protocol over which queries come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
}

impl Transport {
    /// Returns the number of the protocol.
    pub fn number(self) -> u8 {
        match self {
            Transport::Udp => 17,
            Transport::Tcp => 6,
        }
    }
}

/// The endpoint of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// Its id.
    pub endpoint: u16,
    /// Its identity, which its forwarded queries carry.
    pub identity: u32,
    /// Whether it is the host.
    pub is_host: bool,
}

/// A server as records name it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Server {
    /// The id of its endpoint; 0 if it is none of this node.
    pub endpoint: u16,
    /// Its identity.
    pub identity: u32,
}

/// A query whose name policy decides on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question<'a> {
    /// The endpoint that asks.
    pub endpoint: u16,
    /// The protocol.
    pub transport: Transport,
    /// The server that it asks.
    pub server: SocketAddr,
    /// The name, canonical.
    pub name: &'a str,
}

/// Endpoints, rules and the cache of names.
pub trait Directory: Send + Sync {
    /// Returns the endpoint with an address.
    fn client(&self, source: IpAddr) -> Option<Client>;

    /// Whether policy allows a query.
    fn allows(&self, question: Question<'_>) -> bool;

    /// Whether the rules of a client for a server's port may not be here yet: its query is decided a moment later.
    fn is_behind(&self, _source: IpAddr, _transport: Transport, _server: SocketAddr) -> bool {
        false
    }

    /// Whether a server is a workload or node of the cluster other than this one, which may see the address of the client.
    fn may_see_client(&self, server: IpAddr) -> bool;

    /// Returns the server with an address, for records. The default is for processes without monitors, as below.
    fn server(&self, _address: IpAddr) -> Server {
        Server::default()
    }

    /// Returns the labels of an identity, for records; none if it is gone.
    fn labels(&self, _identity: u32) -> Vec<Label> {
        Vec::new()
    }

    /// Returns the addresses of this node, IPv4 and IPv6, for records.
    fn node(&self) -> [Option<IpAddr>; 2] {
        [None; 2]
    }

    /// Takes an event of a query, which `make` returns, in a process without monitors and metrics of its own. The default
    /// is for an agent.
    fn observe(&self, _make: &dyn Fn() -> Observation) {}

    /// Takes the addresses of an answer. The answer is released when the future ends: the kernel should know the
    /// addresses by then.
    fn learn(&self, endpoint: u16, lookup: Lookup) -> BoxFuture<'static, ()>;
}
