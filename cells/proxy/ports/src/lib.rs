//! Ports of proxies and the redirects that lead to them.
//!
//! **Owns** the tables `proxy-ports` (a row for each proxy: its port, whether it listens, whether rules lead packets to
//! it) and `proxy-redirects` (a row for each endpoint and filter whose traffic goes to a proxy).
//! **Needs** for all of it the folder of state, the handle of routes and a [`RuleReader`]; without them an agent still has
//! proxies, whose ports do not outlive it.
//! **Provides** [`Proxies`], the part of `GET /healthz` about proxies, the gauge `proxy_redirects` and the counter
//! `policy_l7_total`.
//!
//! **Life of a proxy.** In its constructor it [registers](Proxies::register); at the start it binds the
//! [preferred](Registration::preferred) port or another, and [announces](Registration::listening) it. The owner of
//! iptables then writes the rules and declares the port [reachable](Proxies::set_reachable); from this moment policy
//! gives the port to redirects. With `enable-bpf-tproxy` programs give packets to the proxy's sockets, and a port is
//! reachable once it is announced. Policy writes a redirect's row before the endpoint's policy map leads packets to the
//! proxy, so that a proxy that reads the table for each request knows the rules of all requests that reach it.
//!
//! A proxy with policies of its own is a [`PolicyReceiver`]: policy lets it have changed ones before the maps.
//!
//! **Ports outlive the agent**: flows that the programs have redirected carry the port in their mark. A file that Cilium
//! reads, too, has them (`state/proxy_ports_state.json`), or else the rules of iptables. The port of a proxy that is gone
//! is kept for five minutes, later given out last.
//!
//! **Routing.** A rule leads packets with the mark of a redirect to a table in which every destination is local; for it
//! to come first, the kernel's rule of the local table moves from priority 0 to 100. Both are rows of table
//! `desired-rules`: its reconciler repairs them.
//! While they are missing no redirect has a port: the traffic is denied and does not pass by the proxy.
//!
//! ```
//! use std::sync::Arc;
//!
//! use hive::prelude::*;
//! use policy_engine::Parser;
//! use proxy_ports::{DNS_PROXY, Proxies, Proxy};
//!
//! fn dns(proxies: Arc<Proxies>, jobs: JobGroup) {
//!     let fixed = Some(proxies.config().tofqdns_proxy_port).filter(|port| *port != 0);
//!     let dns = Proxy { name: DNS_PROXY.into(), parser: Parser::Dns, ingress: false, fixed };
//!     let registration = proxies.register(dns);
//!     jobs.one_shot("dns", move |cx: JobCx| async move {
//!         let socket = std::net::UdpSocket::bind(("127.0.0.1", registration.preferred().unwrap_or(0)))?;
//!         registration.listening(socket.local_addr()?.port())?;
//!         registration.ready().await;
//!         cx.cancelled().await;
//!         Ok(())
//!     })
//!     .add();
//! }
//!
//! hive::validate([statedb::cell(), proxy_ports::cell(), invoke(dns)]).unwrap();
//! ```

//!
//! # Differences from Cilium
//! A redirect gets its port when rules lead to the proxy, not when the port is allocated. Table 2005 (packets from
//! proxies) belongs to the features that need it; rules of a previous run that lead there are removed without them.

mod cell;
mod config;
mod error;
mod file;
mod handle;
mod job;
mod metrics;
mod open;
mod port;
mod receiver;
mod redirect;
mod routing;

pub use cell::cell;
pub use config::ProxyConfig;
pub use error::Error;
pub use file::RuleReader;
pub use handle::{DnsBypass, Proxies, Proxy, ReadyPorts, Registration, SecretFaults};
pub use metrics::Verdicts;
pub use port::{DNS_PROXY, PortState, ProxyPort, proxy_name};
pub use receiver::PolicyReceiver;
pub use redirect::{EndpointRedirect, PeerRules};
pub use routing::{FROM_PROXY_TABLE, from_ingress_proxy};
