//! Pools to create at the start.

use std::collections::BTreeMap;

use ipnetwork::IpNetwork;
use serde_json::{Value, json};

use crate::Error;

/// Parses the option `auto-create-cilium-pod-ip-pools`. Returns the objects by name.
pub(crate) fn parse(pools: &BTreeMap<String, String>) -> Result<BTreeMap<String, Value>, Error> {
    pools.iter().map(|(name, text)| Ok((name.clone(), object(name, text)?))).collect()
}

fn object(name: &str, text: &str) -> Result<Value, Error> {
    let mut spec = json!({});
    for member in text.split(';').map(str::trim).filter(|member| !member.is_empty()) {
        let wrong =
            |expected| Error::AutoCreate { pool: name.to_owned(), value: member.to_owned(), expected };
        let (key, value) = member.split_once(':').ok_or_else(|| wrong("KEY:VALUE"))?;
        let value = value.trim();
        match key.trim() {
            key @ ("ipv4-cidrs" | "ipv6-cidrs") => {
                let is_valid = |cidr: &IpNetwork| cidr.is_ipv4() == (key == "ipv4-cidrs");
                let parse = |text: &str| text.trim().parse::<IpNetwork>().ok().filter(is_valid);
                let cidrs: Option<Vec<IpNetwork>> = value.split(',').map(parse).collect();
                spec[&key[..4]]["cidrs"] = json!(cidrs.ok_or_else(|| wrong("CIDRs of the family"))?);
            }
            key @ ("ipv4-mask-size" | "ipv6-mask-size") => {
                let size: u8 = value.parse().map_err(|_| wrong("the prefix length of nodes' ranges"))?;
                spec[&key[..4]]["maskSize"] = size.into();
            }
            "allow-first-ip" => spec["allowFirstIP"] = flag(value).ok_or_else(|| wrong("true or false"))?,
            "allow-last-ip" => spec["allowLastIP"] = flag(value).ok_or_else(|| wrong("true or false"))?,
            _ => {
                return Err(wrong(
                    "ipv4-cidrs, ipv4-mask-size, ipv6-cidrs, ipv6-mask-size, allow-first-ip or allow-last-ip",
                ));
            }
        }
    }
    for family in ["ipv4", "ipv6"] {
        let pool = &spec[family];
        if !pool.is_null() && (pool["cidrs"].is_null() || pool["maskSize"].is_null()) {
            let (pool, value) = (name.to_owned(), text.to_owned());
            return Err(Error::AutoCreate { pool, value, expected: "both CIDRs and mask size of a family" });
        }
    }
    // The indexing above has added members without a value.
    if let Some(spec) = spec.as_object_mut() {
        spec.retain(|_, member| !member.is_null());
    }
    Ok(json!({"spec": spec}))
}

fn flag(text: &str) -> Option<Value> {
    text.parse::<bool>().ok().map(Value::Bool)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Result<Value, String> {
        let pools = parse(&BTreeMap::from([("blue".to_owned(), text.to_owned())]));
        pools.map(|pools| pools["blue"]["spec"].clone()).map_err(|error| error.to_string())
    }

    #[test]
    fn pools_are_read_as_cilium_writes_them() {
        let spec = one(
            "ipv4-cidrs:10.0.0.0/16,10.1.0.0/16;ipv4-mask-size:24;ipv6-cidrs:fd00::/104;ipv6-mask-size:120;allow-first-ip:true",
        );
        let expected = json!({
            "ipv4": {"cidrs": ["10.0.0.0/16", "10.1.0.0/16"], "maskSize": 24},
            "ipv6": {"cidrs": ["fd00::/104"], "maskSize": 120},
            "allowFirstIP": true,
        });
        assert_eq!(spec, Ok(expected));
        assert_eq!(one("ipv4-cidrs:10.0.0.0/16; ipv4-mask-size: 24").unwrap()["ipv4"]["maskSize"], 24);
    }

    #[test]
    fn pools_that_cannot_be_read_are_refused() {
        for (text, expected) in [
            ("ipv4-cidrs:10.0.0.0/16", "both CIDRs and mask size"),
            ("ipv4-mask-size:24", "both CIDRs and mask size"),
            ("ipv4-cidrs:fd00::/64;ipv4-mask-size:24", "CIDRs of the family"),
            ("ipv4-cidrs:10.0.0.0/16;ipv4-mask-size:x", "prefix length"),
            ("mask:24", "ipv4-cidrs, ipv4-mask-size"),
            ("allow-last-ip:maybe", "true or false"),
            ("ipv4-cidrs", "KEY:VALUE"),
        ] {
            let error = one(text).unwrap_err();
            assert!(
                error.contains("auto-create-cilium-pod-ip-pools: blue: ") && error.contains(expected),
                "{error}"
            );
        }
    }
}
