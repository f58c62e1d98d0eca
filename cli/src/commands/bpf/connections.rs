//! The connections that the datapath tracks, as flows.

use std::collections::HashSet;

use anyhow::bail;
use datapath_abi::tuple_flag;

use super::ct::{self, Row};
use super::pinned;
use crate::commands::preview::Flow;

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// Types of requests: connections of ICMP are echoes.
const ECHO: u16 = 8;
const ECHO_V6: u16 = 128;

/// Returns the tracked connections as flows, one for each source port.
pub(crate) fn connections() -> anyhow::Result<Vec<Flow>> {
    let (mut flows, mut found) = (Vec::new(), false);
    for name in ct::NAMES {
        match ct::rows_of(name) {
            Ok(rows) => {
                found = true;
                flows.extend(of_rows(&rows));
            }
            Err(error) if pinned::is_missing(&error) => {}
            Err(error) => return Err(error),
        }
    }
    if !found {
        bail!("there is no map of connections: is the agent installed on this node?");
    }
    Ok(flows)
}

/// Returns the flows of entries. A connection between two endpoints has an entry for each, which are one flow.
fn of_rows(rows: &[Row]) -> Vec<Flow> {
    let mut seen = HashSet::new();
    let of_connections =
        rows.iter().filter(|row| row.flags & (tuple_flag::RELATED | tuple_flag::SERVICE) == 0);
    let unique = of_connections.filter(|row| seen.insert((row.daddr, row.saddr, row.ports(), row.protocol)));
    let flow = |row: &Row| Flow {
        // Entries store the addresses reversed.
        source: row.daddr,
        destination: row.saddr,
        protocol: row.protocol,
        port: match row.protocol {
            ICMP => ECHO,
            ICMPV6 => ECHO_V6,
            _ => u16::from_be(row.dport),
        },
    };
    unique.map(flow).collect()
}

#[cfg(test)]
mod tests {
    use datapath_abi::CtEntry;

    use super::*;

    fn row(flags: u8, sport: u16, protocol: u8) -> Row {
        let (daddr, saddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        Row::new([daddr, saddr], [80u16.to_be(), sport], protocol, flags, CtEntry::default())
    }

    #[test]
    fn a_connection_is_one_flow_from_its_first_sender() {
        let rows = [
            row(tuple_flag::OUT, 1, 6),
            row(tuple_flag::IN, 1, 6),
            row(tuple_flag::OUT, 2, 6),
            row(tuple_flag::OUT | tuple_flag::RELATED, 0, 1),
            row(tuple_flag::SERVICE, 1, 6),
            row(tuple_flag::IN, 7, 1),
        ];
        let flows = of_rows(&rows);
        assert_eq!(
            flows.iter().map(|flow| (flow.protocol, flow.port)).collect::<Vec<_>>(),
            [(6, 80), (6, 80), (1, 8)]
        );
        assert_eq!((flows[0].source, flows[0].destination), (rows[0].daddr, rows[0].saddr));
    }
}
