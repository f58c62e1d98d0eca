//! The wiring.

use std::collections::BTreeSet;
use std::sync::Arc;

use hive::Settings;
use hive::prelude::*;
use k8s_types::{Api, Kind};

use crate::Error;
use crate::config::DefinitionsConfig;
use crate::register::{Registered, register_all};

/// Registers the definitions in a start hook; objects of all kinds can be read and written after it.
pub fn cell() -> Cell {
    let cells = [config::<DefinitionsConfig>(), provide(new_registration), invoke(|_: Arc<Registered>| ())];
    module("create-crds", "Registers CustomResourceDefinitions", cells)
}

#[derive(Params)]
struct DefinitionParams {
    config: Config<DefinitionsConfig>,
    settings: Arc<Settings>,
    api: Option<Arc<dyn Api>>,
    lifecycle: Lifecycle,
    health: Health,
}

fn new_registration(p: DefinitionParams) -> Result<Arc<Registered>, Error> {
    if p.config.skip_crd_creation {
        p.health.ok("Definitions are installed otherwise (skip-crd-creation)");
        return Ok(Arc::new(Registered(())));
    }
    let api = p.api.ok_or(Error::NoServer)?;
    // Features of agents, too, whose options no cell of an operator declares.
    let kinds = kinds(|option| p.settings.value(option).is_some_and(|(_, value)| value == "true"));
    let health = p.health;
    p.lifecycle
        .hook("register")
        .on_start(move |_| async move {
            let count = kinds.len();
            register_all(api, kinds).await?;
            health.ok(format_args!("{count} definitions are established"));
            Ok(())
        })
        .add();
    Ok(Arc::new(Registered(())))
}

/// Returns the kinds of the features that are on: those that the agent waits for, and those that it reads if they are defined.
fn kinds(is_on: impl Fn(&str) -> bool) -> BTreeSet<Kind> {
    let mut kinds = k8s_client::required_kinds(&is_on);
    kinds.insert(Kind::CiliumNodeConfig);
    if is_on("enable-gateway-api") {
        kinds.insert(Kind::CiliumGatewayClassConfig);
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_chart_has_ten_definitions() {
        let by_default = [
            "enable-ciliumnode-crd",
            "enable-cilium-network-policy",
            "enable-cilium-clusterwide-network-policy",
        ];
        let found = kinds(|option| by_default.contains(&option));
        let names: Vec<&str> = found.iter().map(|kind| kind.plural()).collect();
        let expected = [
            "ciliumcidrgroups",
            "ciliumclusterwidenetworkpolicies",
            "ciliumendpoints",
            "ciliumidentities",
            "ciliuml2announcementpolicies",
            "ciliumloadbalancerippools",
            "ciliumnetworkpolicies",
            "ciliumnodes",
            "ciliumnodeconfigs",
            "ciliumpodippools",
        ];
        assert_eq!(names, expected);
        assert!(kinds(|option| option == "enable-gateway-api").contains(&Kind::CiliumGatewayClassConfig));
    }
}
