//! Translations of sources: a pair of rows ends with the connection that it was made for.

use bpf::RawMap;
use datapath_abi::{CtTuple4, CtTuple6, tuple_flag};

/// The offset of address and port in a row of a NAT map.
pub(crate) const ADDRESS: usize = 32;
/// Bytes of a port.
pub(crate) const PORT: usize = 2;

/// Removes the pair of rows of a connection from a NAT map, by the connection's key. A row of replies that another flow
/// has got stays. Returns whether there was a pair.
pub(crate) fn remove(nat: &RawMap, connection: &[u8]) -> bpf::Result<bool> {
    let len = match connection.len() {
        len if len == size_of::<CtTuple4>() => 4,
        len if len == size_of::<CtTuple6>() => 16,
        _ => return Ok(false),
    };
    let (addresses, rest) = connection.split_at(2 * len);
    let (daddr, saddr) = addresses.split_at(len);
    let &[_, _, _, _, protocol, flags] = rest else { return Ok(false) };
    if flags != tuple_flag::OUT {
        return Ok(false);
    }
    let (dport, sport) = (&rest[..PORT], &rest[PORT..2 * PORT]);
    // Keys of connections have the addresses reversed, those of translations do not.
    let out = [saddr, daddr, rest].concat();
    let mut value = vec![0; nat.layout().value_size as usize];
    if !nat.lookup(&out, &mut value)? {
        return Ok(false);
    }
    nat.delete(&out)?;
    let (address, port) = value[ADDRESS..ADDRESS + len + PORT].split_at(len);
    let reply = [address, saddr, port, dport, &[protocol, tuple_flag::IN]].concat();
    let mut owner = vec![0; value.len()];
    if nat.lookup(&reply, &mut owner)? && owner[ADDRESS..ADDRESS + len + PORT] == [daddr, sport].concat() {
        nat.delete(&reply)?;
    }
    Ok(true)
}
