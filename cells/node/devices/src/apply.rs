//! Applies events to the tables: the pure half of the monitor, without sockets.

use std::collections::{BTreeMap, HashSet};

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use statedb::{IndexKey, KeyBuf, Writer};

use crate::event::Event;
use crate::select::{DeviceRoutes, Selection, is_global_unicast};
use crate::{Device, Neighbor, Route, TABLE_MAIN};

/// The tables inside one transaction.
pub(crate) struct Tables<'s, 'w> {
    pub(crate) devices: &'s mut Writer<'w, Device>,
    pub(crate) routes: &'s mut Writer<'w, Route>,
    pub(crate) neighbors: &'s mut Writer<'w, Neighbor>,
}

/// The follow-up work of a batch of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    /// Whether routes have to be listed again: the kernel sends no notifications for the routes that it removes or
    /// changes because of their source address, nor for IPv4 routes that it removes when a link goes down.
    pub(crate) routes_stale: bool,
}

/// Applies events in order.
pub(crate) fn apply(
    tables: &mut Tables<'_, '_>,
    selection: &Selection,
    events: impl IntoIterator<Item = Event>,
) -> Applied {
    let mut applied = Applied::default();
    // Devices with a change of their own or of their routes: selection depends on both. `None` is a deleted device.
    let mut touched: BTreeMap<u32, Option<Device>> = BTreeMap::new();
    for event in events {
        match event {
            Event::Link(link) => {
                let slot = touched.entry(link.index).or_insert_with(|| known_device(tables, link.index));
                let device = slot.get_or_insert_default();
                applied.routes_stale |= device.is_up() && !link.is_up();
                device.link = link;
            }
            Event::LinkGone(index) => {
                remove_dependents(tables, index);
                touched.insert(index, None);
            }
            Event::Addr(index, addr) => {
                let device = device(&mut touched, tables, index);
                if let Some(device) = device {
                    let same = |a: &&mut crate::DeviceAddress| {
                        a.addr == addr.addr && a.prefix_len == addr.prefix_len
                    };
                    match device.addrs.iter_mut().find(same) {
                        Some(known) => *known = addr,
                        None => device.addrs.push(addr),
                    }
                }
            }
            Event::AddrGone(index, ip, prefix_len) => {
                if let Some(device) = device(&mut touched, tables, index) {
                    let count = device.addrs.len();
                    device.addrs.retain(|a| a.addr != ip || a.prefix_len != prefix_len);
                    applied.routes_stale |= device.addrs.len() < count;
                }
            }
            Event::Route(route) => {
                let index = route.key.link_index;
                // The kernel may announce a route of a link after the link's deletion.
                if index == 0 || device(&mut touched, tables, index).is_some() {
                    insert_route(tables, route);
                }
            }
            Event::RouteGone(key) => {
                device(&mut touched, tables, key.link_index);
                tables.routes.delete(Route::by_key(key));
            }
            Event::Neighbor(neighbor) => {
                let index = neighbor.link_index;
                let known = match touched.get(&index) {
                    Some(device) => device.is_some(),
                    None => tables.devices.get(Device::by_index(index)).is_some(),
                };
                if known {
                    insert_neighbor(tables, neighbor);
                }
            }
            Event::NeighborGone(index, ip) => {
                tables.neighbors.delete(Neighbor::by_id(index, ip));
            }
        }
    }
    for (index, device) in touched {
        match device {
            Some(device) => store(tables, selection, device),
            None => {
                tables.devices.delete(Device::by_index(index));
            }
        }
    }
    applied
}

fn known_device(tables: &Tables<'_, '_>, index: u32) -> Option<Device> {
    let row = tables.devices.get(Device::by_index(index))?;
    Some(Device::clone(row))
}

/// Returns the working copy of a known device.
fn device<'t>(
    touched: &'t mut BTreeMap<u32, Option<Device>>,
    tables: &Tables<'_, '_>,
    index: u32,
) -> Option<&'t mut Device> {
    let slot = touched.entry(index).or_insert_with(|| known_device(tables, index));
    slot.as_mut()
}

/// Recomputes the selection of a device and writes its row if anything changed.
fn store(tables: &mut Tables<'_, '_>, selection: &Selection, mut device: Device) {
    let master = || tables.devices.get(Device::by_index(device.master)).map(|master| master.kind.clone());
    let result = selection.check(&device, &RoutesOf(tables.routes, device.index), master);
    device.selected = result.is_ok();
    device.not_selected_reason = result.err().unwrap_or_default();
    let known = tables.devices.get(Device::by_index(device.index));
    if known.is_none_or(|known| **known != device) {
        tables.devices.insert(device);
    }
}

/// Removes routes and neighbours of a deleted link: the kernel sends no notifications for most of them.
fn remove_dependents(tables: &mut Tables<'_, '_>, index: u32) {
    let routes: Vec<_> = tables.routes.list(Route::by_link(index)).map(|r| r.key).collect();
    for key in routes {
        tables.routes.delete(Route::by_key(key));
    }
    let neighbors: Vec<_> = tables.neighbors.list(Neighbor::by_link(index)).map(|n| n.ip).collect();
    for ip in neighbors {
        tables.neighbors.delete(Neighbor::by_id(index, ip));
    }
}

fn insert_route(tables: &mut Tables<'_, '_>, route: Route) {
    let known = tables.routes.get(Route::by_key(route.key));
    if known.is_none_or(|known| **known != route) {
        tables.routes.insert(route);
    }
}

fn insert_neighbor(tables: &mut Tables<'_, '_>, neighbor: Neighbor) {
    let known = tables.neighbors.get(Neighbor::by_id(neighbor.link_index, neighbor.ip));
    if known.is_none_or(|known| **known != neighbor) {
        tables.neighbors.insert(neighbor);
    }
}

/// Makes the tables equal to a full listing: links, addresses, routes, neighbours. Rows without a difference are not
/// written, so that no watch wakes for them.
pub(crate) fn resync(tables: &mut Tables<'_, '_>, selection: &Selection, listing: Vec<Event>) {
    let mut devices: BTreeMap<u32, Device> = BTreeMap::new();
    let mut neighbors = HashSet::new();
    let mut routes = Vec::new();
    let mut found_neighbors = Vec::new();
    for event in listing {
        match event {
            Event::Link(link) => {
                let index = link.index;
                devices.entry(index).or_default().link = link;
            }
            Event::Addr(index, addr) => devices.entry(index).or_default().addrs.push(addr),
            Event::Route(route) => routes.push(route),
            Event::Neighbor(neighbor) => {
                neighbors.insert((neighbor.link_index, neighbor.ip));
                found_neighbors.push(neighbor);
            }
            _ => {}
        }
    }
    // A link added between the two dumps has addresses but no attributes; its notification follows.
    devices.retain(|index, device| device.index == *index);
    resync_routes(tables, routes);
    tables.neighbors.retain(|n| neighbors.contains(&(n.link_index, n.ip)));
    for neighbor in found_neighbors {
        insert_neighbor(tables, neighbor);
    }
    tables.devices.retain(|d| devices.contains_key(&d.index));
    for device in devices.into_values() {
        store(tables, selection, device);
    }
}

/// Makes table `routes` equal to a listing. Does not update the selection of devices, see [`reselect`].
pub(crate) fn resync_routes(tables: &mut Tables<'_, '_>, routes: Vec<Route>) {
    let encoded = |route: &Route| {
        let mut key = KeyBuf::new();
        route.key.encode(&mut key);
        key
    };
    let listed: HashSet<KeyBuf> = routes.iter().map(encoded).collect();
    tables.routes.retain(|route| listed.contains(&encoded(route)));
    for route in routes {
        insert_route(tables, route);
    }
}

/// Recomputes the selection of all devices.
pub(crate) fn reselect(tables: &mut Tables<'_, '_>, selection: &Selection) {
    let devices: Vec<Device> = tables.devices.all().map(|row| Device::clone(row)).collect();
    for device in devices {
        store(tables, selection, device);
    }
}

/// The routes of one device within the transaction.
struct RoutesOf<'s, 'w>(&'s Writer<'w, Route>, u32);

impl DeviceRoutes for RoutesOf<'_, '_> {
    fn has_default(&self) -> bool {
        let any: [IpNetwork; 2] = [
            Ipv4Network::new([0; 4].into(), 0).map(IpNetwork::V4),
            Ipv6Network::new([0u16; 8].into(), 0).map(IpNetwork::V6),
        ]
        .map(|net| net.expect("length 0 is valid"));
        any.into_iter().any(|dst| {
            let from = Route::from_destination(TABLE_MAIN, self.1, dst);
            let first = self.0.lower_bound(from).next();
            first.is_some_and(|r| r.key.table == TABLE_MAIN && r.key.link_index == self.1 && r.key.dst == dst)
        })
    }

    fn has_global_unicast(&self) -> bool {
        let mut routes = self.0.list(Route::by_link(self.1));
        routes.any(|route| is_global_unicast(route.key.dst.ip()))
    }
}

#[cfg(test)]
#[path = "apply/tests.rs"]
mod tests;
