//! CHECK: the agent reports the endpoint healthy, and the interface is as ADD configured it.

use crate::agent::{Agent, SHORT_PATIENCE};
use crate::config::NetworkConfig;
use crate::error::Error;
use crate::invocation::Invocation;
use crate::link::Links;
use crate::netns::NetNs;
use crate::plan;
use serde::Deserialize;
use std::net::IpAddr;

/// The part of a previous result that can be compared.
#[derive(Debug, Deserialize)]
pub(crate) struct Expected {
    #[serde(default)]
    interfaces: Vec<Interface>,
    #[serde(default)]
    ips: Vec<Ip>,
}

#[derive(Debug, Deserialize)]
struct Interface {
    name: String,
    #[serde(default)]
    sandbox: String,
}

#[derive(Debug, Deserialize)]
struct Ip {
    address: String,
    interface: Option<usize>,
}

impl Expected {
    /// Parses `prevResult`, the result of the ADD in the configuration.
    pub(crate) fn of(config: &NetworkConfig) -> Result<Self, Error> {
        let invalid = |reason: String| Error::InvalidConfig { key: "prevResult", reason };
        let previous =
            config.prev_result.clone().ok_or_else(|| invalid("missing; CHECK compares with it".into()))?;
        serde_json::from_value(previous).map_err(|error| invalid(error.to_string()))
    }

    /// Returns the addresses of the container's interface.
    pub(crate) fn addresses(&self, interface: &str) -> Result<Vec<(IpAddr, u8)>, Error> {
        let belongs = |ip: &&Ip| {
            let owner = ip.interface.and_then(|index| self.interfaces.get(index));
            owner.is_some_and(|owner| owner.name == interface && !owner.sandbox.is_empty())
        };
        self.ips.iter().filter(belongs).map(|ip| parse(&ip.address)).collect()
    }
}

fn parse(text: &str) -> Result<(IpAddr, u8), Error> {
    let place = "prevResult";
    let ip = plan::parse(text, place)?;
    let length = text.split_once('/').and_then(|(_, length)| length.parse().ok());
    length.map(|length| (ip, length)).ok_or_else(|| Error::InvalidAddress { found: text.into(), place })
}

pub(crate) fn run(invocation: &Invocation, config: &NetworkConfig) -> Result<(), Error> {
    invocation.pod()?;
    config.check_chaining()?;
    // The interface of a chained network is the other plugin's to compare.
    let expected = if config.is_chained() { None } else { Some(Expected::of(config)?) };
    let mut agent = Agent::new(&invocation.agent);
    agent.config(SHORT_PATIENCE).map_err(|error| Error::CheckAgentDown { reason: error.to_string() })?;
    match agent.endpoint_health(&invocation.attachment()) {
        Err(reason) => return Err(Error::HealthUnknown { reason }),
        Ok(false) => return Err(Error::Unhealthy),
        Ok(true) => {}
    }
    let Some(expected) = expected else { return Ok(()) };
    let name = invocation.interface.as_str();
    let wanted = expected.addresses(name)?;
    let present = NetNs::open(invocation.netns())?.enter(|| {
        let mut links = Links::here()?;
        match links.index(name)? {
            Some(index) => links.addresses(index, name),
            None => Err(Error::Mismatch { reason: format!("cannot find container link {name}") }),
        }
    })?;
    match wanted.iter().find(|address| !present.contains(address)) {
        Some((ip, length)) => {
            Err(Error::Mismatch { reason: format!("expected ip {ip}/{length} on interface {name}") })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_containers_addresses_count() {
        let expected: Expected = serde_json::from_str(
            r#"{"interfaces":[{"name":"lxc1"},{"name":"eth0","sandbox":"/n"}],"ips":[
                {"address":"10.0.0.5/32","interface":1},{"address":"10.0.0.6/32","interface":0},{"address":"10.0.0.7/32"}]}"#,
        )
        .unwrap();
        assert_eq!(expected.addresses("eth0").unwrap(), [("10.0.0.5".parse().unwrap(), 32)]);
        assert!(expected.addresses("eth1").unwrap().is_empty());
        assert!(parse("10.0.0.5").is_err());
    }
}
