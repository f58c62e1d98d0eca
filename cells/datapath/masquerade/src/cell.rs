//! The wiring: the options, checked with those of routing, how far the programs are, and the file of ip-masq-agent.

use std::sync::Arc;

use hive::prelude::*;
use maps::{FamilyConfig, Maps};
use tunnel::{Family, Tunnel};

use crate::ip_masq::{self, RangesFile};
use crate::{BpfMasquerading, Error, MasqueradeConfig, check};

/// Provides the options of masquerading, and [`BpfMasquerading`].
pub fn cell() -> Cell {
    module(
        "masquerade",
        "Addresses of packets that leave the cluster",
        [config::<MasqueradeConfig>(), provide(new_masquerading)],
    )
}

fn new_masquerading(
    config: Config<MasqueradeConfig>,
    families: Config<FamilyConfig>,
    tunnel: Arc<Tunnel>,
) -> Result<Arc<BpfMasquerading>, Error> {
    check(&config, &families, &tunnel)?;
    Ok(Arc::default())
}

/// Keeps the ranges of a file of ip-masq-agent in the maps, with `enable-ip-masq-agent`.
pub fn ip_masq_agent() -> Cell {
    module("ip-masq-agent", "Ranges of which addresses are not masqueraded", [invoke(follow_ranges)])
}

fn follow_ranges(
    config: Config<MasqueradeConfig>,
    families: Config<FamilyConfig>,
    masquerading: Arc<BpfMasquerading>,
    maps: Arc<Maps>,
    jobs: JobGroup,
) {
    if !config.enable_ip_masq_agent {
        return;
    }
    let is_on = |family, is_enabled| is_enabled && config.is_in_bpf(family);
    let families = ip_masq::Families {
        ipv4: is_on(Family::Ipv4, families.enable_ipv4),
        ipv6: is_on(Family::Ipv6, families.enable_ipv6),
    };
    let file =
        RangesFile { path: config.ip_masq_agent_config_path.clone().into(), families, maps, masquerading };
    jobs.one_shot("ranges", move |cx: JobCx| file.follow(cx)).add();
}
