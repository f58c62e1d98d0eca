//! The decision about the reserved ports, as a function of the options, the kernel's settings and the record.

use std::ops::RangeInclusive;

use crate::error::Error;
use crate::ports::Ports;

/// The kernel's settings.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// The first and the last source port (`ip_local_port_range`).
    pub(crate) ephemeral: (u16, u16),
    /// The ports that are no source ports (`ip_local_reserved_ports`).
    pub(crate) reserved: Ports,
}

impl Kernel {
    fn ephemeral_ports(&self) -> Ports {
        Ports::range(self.ephemeral.0..=self.ephemeral.1)
    }
}

/// A change of the reserved ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Ports to release.
    pub(crate) remove: Ports,
    /// Ports to reserve.
    pub(crate) add: Ports,
    /// The ports that are the agent's own afterwards.
    pub(crate) own: Ports,
}

/// Checks that the range can be served with these settings.
pub(crate) fn check(range: &RangeInclusive<u16>, kernel: &Kernel, auto_protect: bool) -> Result<(), Error> {
    let text = || format!("{}-{}", range.start(), range.end());
    let (first, last) = kernel.ephemeral;
    let ephemeral = format!("{first}-{last}");
    if *range.start() > last {
        return Err(Error::BehindSourcePorts { range: text(), ephemeral });
    }
    let open = Ports::range(range.clone()).common(&kernel.ephemeral_ports()).without(&kernel.reserved);
    match open.is_empty() || auto_protect {
        true => Ok(()),
        false => Err(Error::Overlap { range: text(), ephemeral, open: open.to_string() }),
    }
}

/// Returns the change that reserves `range`, or nothing if there is none. `own` are the ports that the agent has added.
pub(crate) fn plan(range: Option<&RangeInclusive<u16>>, kernel: &Kernel, own: &Ports) -> Plan {
    let foreign = kernel.reserved.without(own);
    let wanted = range.map_or_else(Ports::none, |range| Ports::range(range.clone()));
    let open = wanted.common(&kernel.ephemeral_ports()).without(&foreign);
    let desired = if open.is_empty() { Ports::none() } else { wanted.without(&foreign) };
    Plan {
        remove: kernel.reserved.common(own).without(&desired),
        add: desired.without(&kernel.reserved),
        own: desired,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(text: &str) -> Ports {
        text.parse().unwrap()
    }

    fn kernel(ephemeral: (u16, u16), reserved: &str) -> Kernel {
        Kernel { ephemeral, reserved: ports(reserved) }
    }

    const LOW: (u16, u16) = (15_000, 65_000);

    /// Returns the change as text: removed, added, own.
    fn change(range: Option<(u16, u16)>, kernel: &Kernel, own: &str) -> [String; 3] {
        let range = range.map(|(first, last)| first..=last);
        let plan = plan(range.as_ref(), kernel, &ports(own));
        [plan.remove, plan.add, plan.own].map(|ports| ports.to_string())
    }

    #[test]
    fn only_overlaps_that_are_open_are_reserved() {
        let range = Some((30_000, 32_767));
        assert_eq!(change(range, &kernel((32_768, 60_999), ""), ""), ["", "", ""], "the default");
        let all = ["", "30000-32767", "30000-32767"];
        assert_eq!(change(range, &kernel(LOW, ""), ""), all);
        assert_eq!(change(range, &kernel((32_767, 60_999), ""), ""), all, "one port is enough");
        assert_eq!(change(range, &kernel(LOW, "20000-40000"), ""), ["", "", ""], "reserved by another");
        assert_eq!(
            change(range, &kernel(LOW, "80,31000-31999"), ""),
            ["", "30000-30999,32000-32767", "30000-30999,32000-32767"],
            "a part is another's and stays so"
        );
        let part = kernel((15_000, 30_500), "30000-30500");
        assert_eq!(change(range, &part, ""), ["", "", ""], "the rest is not picked");
    }

    #[test]
    fn own_ports_stay_move_and_go_and_those_of_others_do_not() {
        let with = kernel(LOW, "80,30000-32767,40000");
        let own = "30000-32767";
        assert_eq!(change(Some((30_000, 32_767)), &with, own), ["", "", own], "nothing to write");
        assert_eq!(change(Some((31_000, 33_000)), &with, own), ["30000-30999", "32768-33000", "31000-33000"]);
        assert_eq!(change(None, &with, own), ["30000-32767", "", ""]);
        assert_eq!(change(None, &with, ""), ["", "", ""], "not recorded, so another's");
        assert_eq!(change(None, &kernel(LOW, "80"), own), ["", "", ""], "another has released them");
        assert_eq!(change(Some((30_000, 32_767)), &kernel(LOW, "80"), own), ["", own, own]);
        let apart = kernel((40_000, 50_000), "30000-32767");
        assert_eq!(change(Some((30_000, 32_767)), &apart, own), [own, "", ""], "no overlap any more");
    }

    #[test]
    fn ranges_that_cannot_be_served_are_refused_with_the_remedy() {
        let range = 30_000..=32_767;
        for (kernel, auto_protect) in [
            (kernel((32_768, 60_999), ""), false),
            (kernel(LOW, "30000-32767"), false),
            (kernel(LOW, ""), true),
            (kernel((30_000, 30_000), ""), true),
        ] {
            check(&range, &kernel, auto_protect).unwrap();
        }
        let error = check(&range, &kernel(LOW, "30000-32766"), false).unwrap_err().to_string();
        assert_eq!(
            error,
            "option node-port-range: the kernel picks source ports of 15000-65000, of which 32767 are in 30000-32767 and \
             not reserved; set enable-auto-protect-node-port-range=true, add them to net.ipv4.ip_local_reserved_ports, or \
             give another range"
        );
        let error = check(&range, &kernel((10_000, 29_999), ""), true).unwrap_err().to_string();
        assert!(error.starts_with("option node-port-range: 30000-32767 lies behind"), "{error}");
    }
}
