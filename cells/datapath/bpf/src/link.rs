//! bpf links: a program attached to an interface by tcx or XDP, or to a cgroup, held by a pin, replaced in place.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::error::{Error, Result};
use crate::prog::Program;
use crate::sys::{self, Command, FdAttr, LinkCreateAttr, LinkUpdateAttr, RawLinkInfo};

/// `BPF_LINK_TYPE_CGROUP`.
const LINK_TYPE_CGROUP: u32 = 3;
/// `BPF_LINK_TYPE_XDP`.
const LINK_TYPE_XDP: u32 = 6;
/// `BPF_LINK_TYPE_TCX`.
const LINK_TYPE_TCX: u32 = 11;

/// The direction of packets on an interface for which a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Packets received from the interface.
    Ingress,
    /// Packets sent to the interface.
    Egress,
}

impl Direction {
    /// Returns `BPF_TCX_INGRESS` or `BPF_TCX_EGRESS`.
    fn tcx(self) -> u32 {
        match self {
            Direction::Ingress => 46,
            Direction::Egress => 47,
        }
    }
}

/// The code that runs an XDP program: the driver or the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum XdpMode {
    /// The driver of the device, before the kernel has made anything of the packet.
    Native,
    /// The kernel, for devices of any driver.
    Generic,
}

impl XdpMode {
    /// Returns `XDP_FLAGS_DRV_MODE` or `XDP_FLAGS_SKB_MODE`.
    fn flags(self) -> u32 {
        match self {
            XdpMode::Native => 1 << 2,
            XdpMode::Generic => 1 << 1,
        }
    }
}

/// The kernel's information about a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    /// The kernel's id of the link.
    pub id: u32,
    /// The kernel's id of the program that it runs.
    pub program: u32,
    /// The interface of a tcx or XDP link; 0 once the interface is gone, `None` for other kinds of links.
    pub ifindex: Option<u32>,
    /// The direction of a tcx link.
    pub direction: Option<Direction>,
    /// The id of the cgroup of a cgroup link, which is the inode number of its folder; 0 once the cgroup is gone, `None`
    /// for other kinds of links.
    pub cgroup: Option<u64>,
}

/// A link. Dropping it detaches the program unless the link is pinned.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
}

impl Link {
    /// Attaches a program to an interface, after the existing ones. Waits for a grace period (9 to 16 ms) and
    /// holds the kernel's interface lock meanwhile.
    pub fn tcx(program: &impl AsFd, ifindex: u32, direction: Direction) -> Result<Link> {
        let mut attr = LinkCreateAttr {
            prog_fd: program.as_fd().as_raw_fd() as u32,
            ifindex,
            attach_type: direction.tcx(),
            ..LinkCreateAttr::default()
        };
        let fd = sys::plain_fd(Command::LinkCreate, &mut attr)
            .map_err(|e| Error::syscall("attach program by tcx to interface", ifindex.to_string(), e))?;
        Ok(Link { fd })
    }

    /// Attaches an XDP program to an interface, which has no other one.
    pub fn xdp(program: &impl AsFd, ifindex: u32, mode: XdpMode) -> Result<Link> {
        const BPF_XDP: u32 = 37;
        let mut attr = LinkCreateAttr {
            prog_fd: program.as_fd().as_raw_fd() as u32,
            ifindex,
            attach_type: BPF_XDP,
            flags: mode.flags(),
            ..LinkCreateAttr::default()
        };
        let fd = sys::plain_fd(Command::LinkCreate, &mut attr)
            .map_err(|e| Error::syscall("attach program by XDP to interface", ifindex.to_string(), e))?;
        Ok(Link { fd })
    }

    /// Attaches a program to a cgroup by the folder of the cgroup, after the existing ones, at the hook that it was
    /// loaded for.
    pub fn cgroup(program: &Program, cgroup: &impl AsFd) -> Result<Link> {
        let mut attr = LinkCreateAttr {
            prog_fd: program.as_fd().as_raw_fd() as u32,
            // The kernel's field is a union of the interface's index and a descriptor.
            ifindex: cgroup.as_fd().as_raw_fd() as u32,
            attach_type: program.attach_type(),
            ..LinkCreateAttr::default()
        };
        let fd = sys::plain_fd(Command::LinkCreate, &mut attr)
            .map_err(|e| Error::syscall("attach to a cgroup program", program.name(), e))?;
        Ok(Link { fd })
    }

    /// Opens a pinned link.
    pub fn open(path: &Path) -> Result<Link> {
        let fd = sys::open_pin(path)
            .map_err(|e| Error::syscall("open pinned link", path.display().to_string(), e))?;
        Ok(Link { fd })
    }

    /// Pins the link, which then outlives this process.
    pub fn pin(&self, path: &Path) -> Result<()> {
        sys::pin(self.fd.as_fd(), path).map_err(|e| Error::syscall("pin link", path.display().to_string(), e))
    }

    /// Replaces the program atomically (3 us): each packet meets the old or the new one. [`Error::errno`] is `ENOLINK`
    /// when the interface is gone: the link is defunct then, create another.
    pub fn update(&self, program: &impl AsFd) -> Result<()> {
        let mut attr = LinkUpdateAttr {
            link_fd: self.fd.as_raw_fd() as u32,
            prog_fd: program.as_fd().as_raw_fd() as u32,
            ..LinkUpdateAttr::default()
        };
        sys::plain(Command::LinkUpdate, &mut attr).map(drop).map_err(|e| self.error("update link", e))
    }

    /// Detaches the program; the link stays as a defunct object until its pin and descriptors are gone.
    pub fn detach(&self) -> Result<()> {
        let mut attr = FdAttr { fd: self.fd.as_raw_fd() as u32, pad: 0 };
        sys::plain(Command::LinkDetach, &mut attr).map(drop).map_err(|e| self.error("detach link", e))
    }

    /// Returns the kernel's information about it.
    pub fn info(&self) -> Result<LinkInfo> {
        let raw: RawLinkInfo = sys::info(self.fd.as_fd()).map_err(|e| self.error("ask about link", e))?;
        let tcx = raw.link_type == LINK_TYPE_TCX;
        let direction = match raw.attach_type {
            46 if tcx => Some(Direction::Ingress),
            47 if tcx => Some(Direction::Egress),
            _ => None,
        };
        // A cgroup link has a 64-bit id in place of both words.
        let id = u64::from(raw.attach_type) << 32 | u64::from(raw.ifindex);
        let cgroup = (raw.link_type == LINK_TYPE_CGROUP).then_some(id);
        let ifindex = (tcx || raw.link_type == LINK_TYPE_XDP).then_some(raw.ifindex);
        Ok(LinkInfo { id: raw.id, program: raw.prog_id, ifindex, direction, cgroup })
    }

    fn error(&self, operation: &'static str, source: io::Error) -> Error {
        Error::syscall(operation, format!("descriptor {}", self.fd.as_raw_fd()), source)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
