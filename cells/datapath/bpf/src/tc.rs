//! cls_bpf filters over rtnetlink: clsact, attach, replace, list, remove.

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd};

use netlink::{Attributes, Connection, Message, Protocol, Request};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Parseable};
use netlink_packet_route::tc::{
    TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcHeader, TcMessage, TcOption,
};

use crate::error::{Error, Result};
use crate::link::Direction;

/// Kind of the qdisc that carries filters of both directions.
const CLSACT: &str = "clsact";
/// Bytes of `struct tcmsg` and the type of a filter's kind (`linux/rtnetlink.h`).
const TCMSG_LEN: usize = 20;
const TCA_KIND: u16 = 1;
/// All protocols, as encoded in the lower half of `tcm_info`.
const ETH_P_ALL: u32 = (libc::ETH_P_ALL as u16).to_be() as u32;
/// The handle of our filters within their priority.
const HANDLE: u32 = 1;

/// A cls_bpf filter found on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Its priority; the lowest runs first.
    pub priority: u16,
    /// Its handle within the priority.
    pub handle: u32,
    /// Its name; Cilium's are `<program>-<device>`.
    pub name: String,
    /// The id of its program, 0 if the kernel does not report it.
    pub program: u32,
}

/// A netlink socket for tc filters, in the network namespace of the thread that created it. Calls wait for the kernel's
/// response, which takes microseconds: 21 to attach, 2 to replace.
#[derive(Debug)]
pub struct Tc {
    connection: RefCell<Connection>,
}

impl Tc {
    /// Opens a socket.
    pub fn new() -> Result<Tc> {
        let connection = Connection::open(Protocol::Route)
            .map_err(|source| Error::syscall("open socket", "rtnetlink", source))?;
        Ok(Tc { connection: RefCell::new(connection) })
    }

    /// Makes sure that the interface has a clsact qdisc.
    pub fn ensure_clsact(&self, ifindex: u32) -> Result<()> {
        match self.request(libc::RTM_NEWQDISC, clsact(ifindex), NLM_F_CREATE | NLM_F_EXCL) {
            Err(error) if error.is_exists() => Ok(()),
            other => other.map_err(|source| tc_error("add qdisc clsact", ifindex, source)),
        }
    }

    /// Removes the clsact qdisc with all filters in it; false if there was none.
    pub fn remove_clsact(&self, ifindex: u32) -> Result<bool> {
        self.removal(libc::RTM_DELQDISC, clsact(ifindex), "remove qdisc clsact", ifindex)
    }

    /// Attaches a program in direct-action mode with handle 1 at that priority, or replaces the program there. The
    /// interface need not be up; it must have a clsact qdisc.
    pub fn attach(
        &self,
        ifindex: u32,
        direction: Direction,
        priority: u16,
        name: &str,
        program: &impl AsFd,
    ) -> Result<()> {
        let message = program_filter(ifindex, direction, priority, name, program);
        self.request(libc::RTM_NEWTFILTER, message, NLM_F_CREATE | NLM_F_REPLACE)
            .map_err(|source| tc_error("attach tc filter", ifindex, source))
    }

    /// Calls [`Tc::attach`] and, only if the qdisc is missing, adds it with the filter: a replacement is one request.
    pub fn attach_with_clsact(
        &self,
        ifindex: u32,
        direction: Direction,
        priority: u16,
        name: &str,
        program: &impl AsFd,
    ) -> Result<()> {
        match self.attach(ifindex, direction, priority, name, program) {
            Err(e) if matches!(e.errno(), Some(libc::EINVAL | libc::ENOENT | libc::EOPNOTSUPP)) => {
                let filter = program_filter(ifindex, direction, priority, name, program);
                self.add_clsact_with(ifindex, filter)
            }
            other => other,
        }
    }

    /// Adds the qdisc and a filter in one datagram: a job that compares interfaces when the kernel reports the qdisc would
    /// attach the missing filter a second time, and both would wait for each other.
    fn add_clsact_with(&self, ifindex: u32, filter: TcMessage) -> Result<()> {
        let qdisc = Request { kind: libc::RTM_NEWQDISC, body: clsact(ifindex) };
        let filter = Request { kind: libc::RTM_NEWTFILTER, body: filter };
        let requests = [(&qdisc, NLM_F_CREATE | NLM_F_EXCL), (&filter, NLM_F_CREATE | NLM_F_REPLACE)];
        let attached = |source| tc_error("attach tc filter", ifindex, source);
        let results = self.connection.borrow_mut().request_all(requests).map_err(attached)?;
        let mut results = results.into_iter();
        if let Some(Err(source)) = results.next()
            && !source.is_exists()
        {
            return Err(tc_error("add qdisc clsact", ifindex, source));
        }
        results.try_for_each(|result| result.map_err(attached))
    }

    /// Removes the filter with handle 1 at that priority; false if there was none.
    pub fn detach(&self, ifindex: u32, direction: Direction, priority: u16) -> Result<bool> {
        let message = filter(ifindex, direction, priority);
        self.removal(libc::RTM_DELTFILTER, message, "remove tc filter", ifindex)
    }

    /// Returns the cls_bpf filters of an interface in one direction; none without clsact.
    pub fn filters(&self, ifindex: u32, direction: Direction) -> Result<Vec<Filter>> {
        match self.dump(ifindex, direction, |answer| parse_filter(&answer)) {
            Err(error) if matches!(error.errno(), Some(libc::EINVAL | libc::ENOENT)) => Ok(Vec::new()),
            filters => filters.map_err(|source| tc_error("list tc filters", ifindex, source)),
        }
    }

    /// Whether an interface has a clsact qdisc without a filter of any kind in either direction.
    pub fn is_clsact_empty(&self, ifindex: u32) -> Result<bool> {
        for direction in [Direction::Ingress, Direction::Egress] {
            match self.dump(ifindex, direction, |_| Ok(Some(()))) {
                Ok(filters) if filters.is_empty() => {}
                Ok(_) => return Ok(false),
                // No clsact, or no interface.
                Err(error) if matches!(error.errno(), Some(libc::EINVAL | libc::ENOENT | libc::ENODEV)) => {
                    return Ok(false);
                }
                Err(source) => return Err(tc_error("list tc filters", ifindex, source)),
            }
        }
        Ok(true)
    }

    /// Lists the filters of an interface in one direction: all, or an error.
    fn dump<T>(
        &self,
        ifindex: u32,
        direction: Direction,
        convert: impl FnMut(Message<'_>) -> Result<Option<T>, netlink::Error>,
    ) -> Result<Vec<T>, netlink::Error> {
        let mut body = TcMessage::default();
        body.header = header(ifindex, TcHandle::UNSPEC, parent(direction));
        self.connection.borrow_mut().dump(&Request { kind: libc::RTM_GETTFILTER, body }, convert)
    }

    fn removal(&self, kind: u16, message: TcMessage, operation: &'static str, ifindex: u32) -> Result<bool> {
        match self.request(kind, message, 0) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.errno(), Some(libc::ENOENT | libc::EINVAL | libc::ENODEV)) => {
                Ok(false)
            }
            Err(source) => Err(tc_error(operation, ifindex, source)),
        }
    }

    fn request(&self, kind: u16, body: TcMessage, flags: u16) -> Result<(), netlink::Error> {
        self.connection.borrow_mut().request(&Request { kind, body }, flags)
    }
}

fn tc_error(operation: &'static str, ifindex: u32, source: netlink::Error) -> Error {
    Error::Tc { operation, ifindex, source }
}

fn parent(direction: Direction) -> TcHandle {
    let minor = match direction {
        Direction::Ingress => TcHandle::MIN_INGRESS,
        Direction::Egress => TcHandle::MIN_EGRESS,
    };
    TcHandle { major: TcHandle::CLSACT.major, minor }
}

/// `struct tcmsg` without a family and a priority.
fn header(ifindex: u32, handle: TcHandle, parent: TcHandle) -> TcHeader {
    TcHeader { index: ifindex.cast_signed(), handle, parent, ..TcHeader::default() }
}

/// The clsact qdisc of an interface.
fn clsact(ifindex: u32) -> TcMessage {
    // Its handle is ffff:, as that of each ingress qdisc.
    let handle = TcHandle { major: TcHandle::CLSACT.major, minor: 0 };
    let mut message = TcMessage::default();
    message.header = header(ifindex, handle, TcHandle::CLSACT);
    message.attributes.push(TcAttribute::Kind(CLSACT.to_owned()));
    message
}

/// A cls_bpf filter of an interface.
fn filter(ifindex: u32, direction: Direction, priority: u16) -> TcMessage {
    let mut message = TcMessage::default();
    message.header = header(ifindex, HANDLE.into(), parent(direction));
    message.header.info = u32::from(priority) << 16 | ETH_P_ALL;
    message.attributes.push(TcAttribute::Kind(TcFilterBpf::KIND.to_owned()));
    message
}

/// A filter of a program in direct-action mode.
fn program_filter(
    ifindex: u32,
    direction: Direction,
    priority: u16,
    name: &str,
    program: &impl AsFd,
) -> TcMessage {
    let mut message = filter(ifindex, direction, priority);
    let options = [
        TcFilterBpfOption::ProgFd(program.as_fd().as_raw_fd().cast_unsigned()),
        TcFilterBpfOption::ProgName(name.to_owned()),
        TcFilterBpfOption::Flags(TcBpfFlags::DirectAction),
    ];
    message.attributes.push(TcAttribute::Options(options.map(TcOption::Bpf).to_vec()));
    message
}

/// Returns the cls_bpf filter of a response; `None` for filters of other kinds, which are not decoded, and for the
/// message about the priority itself, which has no handle.
fn parse_filter(answer: &Message<'_>) -> Result<Option<Filter>, netlink::Error> {
    let attributes = answer.body.get(TCMSG_LEN..).unwrap_or_default();
    let kind = Attributes::new(attributes).first(TCA_KIND)?;
    if kind.is_none_or(|kind| kind.text() != TcFilterBpf::KIND.as_bytes()) {
        return Ok(None);
    }
    let message = TcMessage::parse(answer.body).map_err(|error| answer.undecodable(error))?;
    let TcHeader { handle, info, .. } = message.header;
    let mut filter =
        Filter { priority: (info >> 16) as u16, handle: handle.into(), name: String::new(), program: 0 };
    let mut has_options = false;
    for attribute in message.attributes {
        let TcAttribute::Options(options) = attribute else { continue };
        has_options = true;
        for option in options {
            match option {
                TcOption::Bpf(TcFilterBpfOption::ProgName(name)) => filter.name = name,
                TcOption::Bpf(TcFilterBpfOption::ProgId(id)) => filter.program = id,
                _ => {}
            }
        }
    }
    Ok((has_options && filter.handle != 0).then_some(filter))
}

#[cfg(test)]
mod tests {
    use netlink::{Body, messages};

    use super::*;

    /// `TCA_OPTIONS`, `TCA_BPF_NAME`, `TCA_BPF_ID` of `linux/pkt_cls.h`.
    const OPTIONS: u16 = 2;
    const NAME: u16 = 7;
    const ID: u16 = 11;

    fn parsed(
        handle: u32,
        kind: &str,
        fill: impl FnOnce(&mut Body),
    ) -> Result<Option<Filter>, netlink::Error> {
        let info = 5_u32 << 16 | ETH_P_ALL;
        let mut body = Body::new(&[0, 7, handle, 0xffff_fff2, info].map(u32::to_ne_bytes).concat());
        body.string(TCA_KIND, kind);
        fill(&mut body);
        let length = 16 + body.as_bytes().len() as u32;
        let header = [&length.to_ne_bytes()[..], &libc::RTM_NEWTFILTER.to_ne_bytes(), &[0; 10]].concat();
        let packet = [&header, body.as_bytes()].concat();
        parse_filter(&messages(&packet).next().unwrap().unwrap())
    }

    #[test]
    fn filters_of_other_kinds_are_passed_over() {
        let options = |body: &mut Body| {
            body.nested(OPTIONS, |options| {
                options.string(NAME, "cil_from_netdev-eth0").attribute(ID, &9_u32.to_ne_bytes());
            });
        };
        let name = "cil_from_netdev-eth0".to_owned();
        let expected = Filter { priority: 5, handle: 1, name, program: 9 };
        assert_eq!(parsed(1, "bpf", options).unwrap(), Some(expected));
        assert_eq!(parsed(0, "bpf", options).unwrap(), None, "the priority itself");
        assert_eq!(parsed(1, "bpf", |_| {}).unwrap(), None);
        // Options that no parser accepts.
        let garbage = |body: &mut Body| {
            body.attribute(OPTIONS, &[1; 7]);
        };
        assert_eq!(parsed(1, "flower", garbage).unwrap(), None);
        assert!(matches!(parsed(1, "bpf", garbage), Err(netlink::Error::Decode { .. })));
    }
}
