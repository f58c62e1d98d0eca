//! The copy of the reverse NAT maps: ids are assigned one after the other, so pages of them need neither keys nor hashes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::lbmap::rows::Family;

/// The number of ids of a page.
const PAGE: usize = 64;

/// A known entry; `None` for one that may exist.
type Known<Ip> = Option<(Ip, u16)>;

type Page<Ip> = Box<[Option<Known<Ip>>; PAGE]>;

/// Entries by id.
struct Pages<Ip>(Vec<Option<Page<Ip>>>);

impl<Ip: Copy> Pages<Ip> {
    fn get(&self, id: u16) -> Option<Known<Ip>> {
        let (page, at) = place(id);
        self.0.get(page)?.as_ref()?[at]
    }

    fn set(&mut self, id: u16, value: Known<Ip>) -> Option<Known<Ip>> {
        let (page, at) = place(id);
        if page >= self.0.len() {
            self.0.resize_with(page + 1, || None);
        }
        self.0[page].get_or_insert_with(|| Box::new([None; PAGE]))[at].replace(value)
    }

    fn remove(&mut self, id: u16) -> Option<Known<Ip>> {
        let (page, at) = place(id);
        let slot = self.0.get_mut(page)?;
        let entries = slot.as_mut()?;
        let before = entries[at].take();
        if entries.iter().all(Option::is_none) {
            *slot = None;
        }
        before
    }

    fn iter(&self) -> impl Iterator<Item = (u16, Known<Ip>)> {
        let pages = self.0.iter().enumerate().filter_map(|(page, entries)| Some((page, entries.as_ref()?)));
        pages.flat_map(|(page, entries)| {
            let known = entries.iter().enumerate();
            known.filter_map(move |(at, known)| Some(((page * PAGE + at) as u16, (*known)?)))
        })
    }
}

impl<Ip> Default for Pages<Ip> {
    fn default() -> Self {
        Pages(Vec::new())
    }
}

fn place(id: u16) -> (usize, usize) {
    (usize::from(id) / PAGE, usize::from(id) % PAGE)
}

/// The entries of both maps, each with an address of its map's family.
#[derive(Default)]
pub(crate) struct ReverseNat {
    v4: Pages<Ipv4Addr>,
    v6: Pages<Ipv6Addr>,
}

impl ReverseNat {
    /// Returns the entry, or `Some(None)` if it may exist.
    pub(crate) fn get(&self, family: Family, id: u16) -> Option<Known<IpAddr>> {
        match family {
            Family::V4 => self.v4.get(id).map(wide),
            Family::V6 => self.v6.get(id).map(wide),
        }
    }

    /// Sets an entry; returns whether it can be stored here, and the entry before.
    pub(crate) fn set(
        &mut self,
        family: Family,
        id: u16,
        value: Known<IpAddr>,
    ) -> (bool, Option<Known<IpAddr>>) {
        match (family, value) {
            (Family::V4, None) => (true, self.v4.set(id, None).map(wide)),
            (Family::V6, None) => (true, self.v6.set(id, None).map(wide)),
            (Family::V4, Some((IpAddr::V4(ip), port))) => (true, self.v4.set(id, Some((ip, port))).map(wide)),
            (Family::V6, Some((IpAddr::V6(ip), port))) => (true, self.v6.set(id, Some((ip, port))).map(wide)),
            _ => (false, self.remove(family, id)),
        }
    }

    /// Removes an entry; returns it.
    pub(crate) fn remove(&mut self, family: Family, id: u16) -> Option<Known<IpAddr>> {
        match family {
            Family::V4 => self.v4.remove(id).map(wide),
            Family::V6 => self.v6.remove(id).map(wide),
        }
    }

    /// Iterates over all entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Family, u16, Known<IpAddr>)> {
        let v4 = self.v4.iter().map(|(id, known)| (Family::V4, id, wide(known)));
        v4.chain(self.v6.iter().map(|(id, known)| (Family::V6, id, wide(known))))
    }
}

fn wide<Ip: Into<IpAddr>>(known: Known<Ip>) -> Known<IpAddr> {
    known.map(|(ip, port)| (ip.into(), port))
}

const _: () = assert!(size_of::<Option<Known<Ipv4Addr>>>() == 8);
