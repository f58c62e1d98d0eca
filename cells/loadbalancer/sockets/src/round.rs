//! One round: terminates the sockets that were translated to a removed backend.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use loadbalancer::{Backend, BackendState, Frontend, LbAddress, Protocol, Scope, ServiceName};
use statedb::{Snapshot, Table};

use crate::diag::{Diag, InetSocket, Transport};
use crate::namespaces::{self, Closed};
use crate::reverse::ReverseSockets;

/// The state that rounds share.
pub(crate) struct Sockets {
    pub(crate) frontends: Table<Frontend>,
    pub(crate) backends: Table<Backend>,
    pub(crate) reverse: Arc<ReverseSockets>,
    /// The folder of the pods' namespaces, if their sockets are checked.
    pub(crate) namespaces: Option<PathBuf>,
    pub(crate) transports: Vec<Transport>,
}

/// The outcome of a round.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    pub(crate) sockets: usize,
    pub(crate) closed: Closed,
}

/// The backends whose sockets are checked.
#[derive(Debug)]
pub(crate) enum Of {
    /// Those of backends that a service has lost.
    Lost(HashSet<LbAddress>),
    /// All: the backends that were removed while no agent ran are unknown.
    All,
}

impl Of {
    fn has(&self, backend: &LbAddress) -> bool {
        match self {
            Of::Lost(lost) => lost.contains(backend),
            Of::All => true,
        }
    }

    fn concerns(&self, transport: Transport) -> bool {
        match self {
            Of::Lost(lost) => lost.iter().any(|address| address.protocol == protocol(transport)),
            Of::All => true,
        }
    }
}

/// Whether a backend can have connections.
pub(crate) fn is_alive(backend: &Backend) -> bool {
    matches!(backend.state, BackendState::Active | BackendState::Terminating) && !backend.unhealthy
}

impl Sockets {
    /// Terminates the sockets that were translated to these backends, unless their service still has them.
    pub(crate) fn end(&self, of: &Of) -> anyhow::Result<Ended> {
        let mut ended = Ended::default();
        let transports: Vec<Transport> =
            self.transports.iter().copied().filter(|transport| of.concerns(*transport)).collect();
        // Without entries no program translates at sockets, and a dump of all sockets would be useless.
        if transports.is_empty() || self.reverse.is_empty()? {
            return Ok(ended);
        }
        ended.sockets = self.end_in(&mut Diag::open()?, &transports, of)?;
        if let Some(folder) = &self.namespaces {
            let mut failed = Ok(());
            ended.closed =
                namespaces::each(folder, |mut diag| match self.end_in(&mut diag, &transports, of) {
                    Ok(count) => ended.sockets += count,
                    Err(error) => failed = Err(error),
                });
            failed?;
        }
        Ok(ended)
    }

    /// Terminates such sockets in one network namespace.
    fn end_in(&self, diag: &mut Diag, transports: &[Transport], of: &Of) -> anyhow::Result<usize> {
        let mut count = 0;
        for transport in transports {
            for socket in diag.connected(*transport)? {
                let backend = LbAddress::new(socket.peer.ip(), socket.peer.port(), protocol(*transport));
                if of.has(&backend) && self.is_to_end(&socket, &backend, of)? && diag.destroy(&socket)? {
                    let (cookie, backend) = (socket.cookie, backend.to_string());
                    tracing::debug!(
                        cookie,
                        backend,
                        "Ended a socket that was connected to a backend that is gone"
                    );
                    count += 1;
                }
            }
        }
        Ok(count)
    }

    fn is_to_end(&self, socket: &InetSocket, backend: &LbAddress, of: &Of) -> anyhow::Result<bool> {
        let Some(frontend) = self.reverse.frontend(socket.cookie, socket.peer)? else { return Ok(false) };
        let snapshot = self.backends.snapshot();
        let services = self.services_at(frontend, backend.protocol, &snapshot);
        // An address without a service may have belonged to one that has this backend at another address.
        let any = services.is_empty() && matches!(of, Of::All);
        let keeps = |row: &Backend| is_alive(row) && (any || services.contains(&row.service_name));
        Ok(!self.backends.list(&snapshot, Backend::by_address(backend)).into_iter().any(|row| keeps(row)))
    }

    /// Returns the services whose backends an address is translated to: its own and the target of its redirection, or
    /// those of the same port at all addresses of the node.
    fn services_at(&self, frontend: SocketAddr, protocol: Protocol, snapshot: &Snapshot) -> Vec<ServiceName> {
        let all: IpAddr = match frontend {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let at = |ip: IpAddr| {
            let address = |scope| LbAddress { scope, ..LbAddress::new(ip, frontend.port(), protocol) };
            let rows = [Scope::External, Scope::Internal]
                .map(|scope| self.frontends.get(snapshot, Frontend::by_address(&address(scope))));
            let names = |row: &Frontend| row.redirect_to.iter().chain([&row.service.name]).cloned().collect();
            rows.into_iter().flatten().flat_map(|row| -> Vec<ServiceName> { names(row) }).collect::<Vec<_>>()
        };
        let own = at(frontend.ip());
        if own.is_empty() { at(all) } else { own }
    }
}

fn protocol(transport: Transport) -> Protocol {
    match transport {
        Transport::Tcp => Protocol::Tcp,
        Transport::Udp => Protocol::Udp,
    }
}
