//! The world of the configurations: ports, Envoy and services as they are at one moment.

use std::collections::BTreeSet;
use std::sync::Arc;

use envoy_api::Types;
use envoy_proxy::{Delivery, Envoy, Kind};
use loadbalancer::{Frontend, ServiceName, ServicesWriter};
use policy_engine::Parser;
use proxy_ports::{PortState, Proxies, Proxy, ProxyPort, Registration};
use statedb::Snapshot;

use crate::controller::Controller;
use crate::parse::Settings;
use crate::progress::{Set, World};

/// A view of the tables.
pub(crate) struct View {
    envoy: Envoy,
    proxies: Arc<Proxies>,
    writer: ServicesWriter,
    settings: Settings,
    types: Arc<Types>,
    /// The names of the resources of all configurations.
    names: BTreeSet<(Kind, Arc<str>)>,
    snapshot: Snapshot,
}

impl View {
    pub(crate) fn new(controller: &Controller) -> View {
        let names = controller.progress.values().flat_map(|one| one.published().into_keys());
        View {
            envoy: controller.envoy.clone(),
            proxies: controller.proxies.clone(),
            writer: controller.writer.clone(),
            settings: controller.settings.clone(),
            types: controller.types.clone(),
            names: names.collect(),
            snapshot: controller.writer.frontends().snapshot(),
        }
    }

    fn port(&self, name: &str) -> Option<ProxyPort> {
        let table = self.proxies.ports();
        table.get(&table.snapshot(), ProxyPort::by_name(name)).map(|row| ProxyPort::clone(row))
    }
}

impl World for View {
    fn register(&self, name: &Arc<str>) -> Registration {
        let (name, parser) = (name.clone(), Parser::Custom);
        self.proxies.register_late(Proxy { name, parser, ingress: false, fixed: None })
    }

    fn restored(&self, name: &str) -> Option<u16> {
        let row = self.port(name).filter(|row| row.state == PortState::Restored && row.port != 0)?;
        Some(row.port)
    }

    fn is_ready(&self, name: &str) -> bool {
        self.port(name).is_some_and(|row| row.state == PortState::Ready)
    }

    fn delivery(&self, kind: Kind, name: &str, version: u64) -> Delivery {
        self.envoy.delivery(kind, name, version)
    }

    fn is_about_other(&self, kind: Kind, text: &str, own: &Set) -> bool {
        let has_own = own.keys().any(|(of, name)| *of == kind && text.contains(&**name));
        let others = || self.names.iter().filter(|key| key.0 == kind && !own.contains_key(*key));
        !has_own && (others().any(|(_, name)| text.contains(&**name)) || self.envoy.names_other(kind, text))
    }

    fn is_reconciled(&self, services: &BTreeSet<ServiceName>) -> bool {
        let frontends = self.writer.frontends();
        services.iter().all(|service| {
            let mut rows = frontends.list(&self.snapshot, Frontend::by_service(service));
            rows.all(|row| !row.status.is_pending())
        })
    }

    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn types(&self) -> &Types {
        &self.types
    }
}
