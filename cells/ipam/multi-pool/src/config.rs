//! The options.

use std::collections::BTreeMap;

use ipam::Family;
use maps::FamilyConfig;

use crate::Error;
use crate::pools::Settings;

/// Options about pools of pods' addresses. Changes take effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "IPAM")]
pub struct MultiPoolConfig {
    /// Pool of pods without another one, and of the node's own addresses
    #[flag(default = "default")]
    pub ipam_default_ip_pool: String,
    /// Free addresses that the node keeps by pool, with ipam=multi-pool
    #[flag(default = "default=8")]
    pub ipam_multi_pool_pre_allocation: BTreeMap<String, String>,
    /// Masquerade addresses of the default pool alone, with ipam=multi-pool
    #[flag(default = false)]
    pub only_masquerade_default_pool: bool,
}

impl MultiPoolConfig {
    /// Returns the settings of demand. The default value of the pre-allocation is about the default pool, whatever its name.
    pub(crate) fn settings(&self, families: &FamilyConfig) -> Result<Settings, Error> {
        let mut pre_allocation = BTreeMap::new();
        let is_default =
            self.ipam_multi_pool_pre_allocation == BTreeMap::from([("default".into(), "8".into())]);
        for (pool, value) in &self.ipam_multi_pool_pre_allocation {
            let wrong = || Error::PreAllocation { pool: pool.clone(), value: value.clone() };
            let count: u32 = value.trim().parse().map_err(|_| wrong())?;
            let pool = if is_default { &self.ipam_default_ip_pool } else { pool };
            pre_allocation.insert(pool.clone(), count.into());
        }
        let families = [(Family::V4, families.enable_ipv4), (Family::V6, families.enable_ipv6)];
        let families = families.into_iter().filter_map(|(family, is_on)| is_on.then_some(family)).collect();
        Ok(Settings { default_pool: self.ipam_default_ip_pool.as_str().into(), pre_allocation, families })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pool: &str, pre_allocation: &[(&str, &str)]) -> MultiPoolConfig {
        let pairs = pre_allocation.iter().map(|(pool, count)| ((*pool).to_owned(), (*count).to_owned()));
        MultiPoolConfig {
            ipam_default_ip_pool: pool.into(),
            ipam_multi_pool_pre_allocation: pairs.collect(),
            only_masquerade_default_pool: false,
        }
    }

    #[test]
    fn the_pre_allocation_is_by_pool() {
        let families = FamilyConfig { enable_ipv4: true, enable_ipv6: false };
        let settings = config("main", &[("default", "8")]).settings(&families).unwrap();
        assert_eq!(settings.pre_allocation, BTreeMap::from([("main".into(), 8)]));
        assert_eq!(settings.families, [Family::V4]);
        let settings = config("main", &[("default", "4"), ("main", "16")]).settings(&families).unwrap();
        assert_eq!(settings.pre_allocation, BTreeMap::from([("default".into(), 4), ("main".into(), 16)]));
        for value in ["-1", "x", ""] {
            let error = config("main", &[("blue", value)]).settings(&families).unwrap_err().to_string();
            assert!(error.contains(&format!("blue={value} is wrong")), "{error}");
        }
    }
}
