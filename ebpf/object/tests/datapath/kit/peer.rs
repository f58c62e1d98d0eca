//! Packets with metadata that a test run cannot set: keys of tunnels, tags of VLANs. Programs set it before.

use std::sync::Mutex;

use anyhow::{Context as _, Result};
use aya::maps::{Array, MapData, ProgramArray};
use aya::programs::tc::qdisc_add_clsact;
use aya::programs::{SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader, VerifierLogLevel};

use super::packets::run_program;
use super::{Datapath, IFINDEX, Incoming, Outcome};

/// The program that gives a packet a tunnel's key.
static REPLAY: &[u8] = {
    #[repr(C, align(8))]
    struct Aligned<T: ?Sized>(T);
    static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!("../../../prebuilt/replay.o"));
    &OBJECT.0
};

/// The tunnel's key has IPv6 addresses (`BPF_F_TUNINFO_IPV6`).
pub(crate) const IPV6_KEY: u32 = 1;

/// Packets as they come out of a tunnel.
pub(crate) struct Peer {
    replay: Ebpf,
    program: Mutex<ProgramArray<MapData>>,
    /// The options of its packets.
    options: Mutex<Vec<u8>>,
}

/// The tunnel's state of a packet: the id of its key, and its options.
pub(crate) type TunnelState = (u32, Vec<u8>);

/// The value of the map with the tunnel's state, and the offsets of the length of options and of the id in it.
type Template = [u8; 88];
const OPTIONS_LEN: usize = 80;
const TUNNEL_ID: usize = 84;

impl Peer {
    pub(crate) fn new() -> Result<Self> {
        let mut replay = EbpfLoader::new().verifier_log_level(VerifierLogLevel::DISABLE).load(REPLAY)?;
        let program: &mut SchedClassifier =
            replay.program_mut("tunnelled").context("no program")?.try_into()?;
        program.load()?;
        let program = ProgramArray::try_from(replay.take_map("replay_program").context("no map")?)?;
        Ok(Self { replay, program: program.into(), options: Mutex::default() })
    }

    /// Gives packets options of the tunnel, of 12 or of 24 bytes.
    pub(crate) fn set_options(&mut self, options: &[u8]) -> Result<()> {
        let mut template: Template = [0; 88];
        template[..options.len()].copy_from_slice(options);
        let map = self.replay.map_mut("replay_packet").context("no map")?;
        Array::<_, Template>::try_from(map)?.set(0, template, 0)?;
        *self.options.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = options.to_vec();
        Ok(())
    }

    /// Keeps the state of packets that leave by an interface of this namespace, and drops them.
    pub(crate) fn watch(&mut self, interface: &str) -> Result<()> {
        let program: &mut SchedClassifier =
            self.replay.program_mut("leaving").context("no program")?.try_into()?;
        program.load()?;
        let _ = qdisc_add_clsact(interface);
        program.attach(interface, TcAttachType::Egress)?;
        Ok(())
    }

    /// Returns the state of the latest packet that left, and forgets it; `None` if there was no packet.
    pub(crate) fn left(&mut self) -> Result<Option<TunnelState>> {
        let map = self.replay.map_mut("replay_packet").context("no map")?;
        let mut map = Array::<_, Template>::try_from(map)?;
        let template = map.get(&0, 0)?;
        map.set(0, [0; 88], 0)?;
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| template[at + byte]));
        let len = word(OPTIONS_LEN) as usize;
        Ok((word(TUNNEL_ID) != 0).then(|| (word(TUNNEL_ID), template[..len].to_vec())))
    }

    /// Runs a packet with a tunnel's key, an id and flags, through a program.
    pub(crate) fn run(
        &self,
        datapath: &Datapath,
        to: &str,
        key: (u32, u32),
        packet: &[u8],
    ) -> Result<Outcome> {
        self.program.lock().unwrap_or_else(std::sync::PoisonError::into_inner).set(
            0,
            datapath.program(to)?.fd()?,
            0,
        )?;
        let options = self.options.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let cb = [key.0, key.1, options.len() as u32, 0, 0];
        let incoming = Incoming { ingress_ifindex: IFINDEX, cb, ..Incoming::default() };
        run_program(self.replay.program("tunnelled").context("no program")?.try_into()?, packet, incoming)
    }

    /// Runs a packet that came by the tunnel with this identity.
    pub(crate) fn sends(&self, datapath: &Datapath, id: u32, packet: &[u8]) -> Result<Outcome> {
        self.run(datapath, datapath_object::FROM_OVERLAY, (id, 0), packet)
    }
}

/// Packets with the tag of a VLAN.
pub(crate) struct Tagger {
    replay: Ebpf,
    program: Mutex<ProgramArray<MapData>>,
}

impl Tagger {
    pub(crate) fn new() -> Result<Self> {
        let mut replay = EbpfLoader::new().verifier_log_level(VerifierLogLevel::DISABLE).load(REPLAY)?;
        let program: &mut SchedClassifier = replay.program_mut("tagged").context("no program")?.try_into()?;
        program.load()?;
        let program = ProgramArray::try_from(replay.take_map("replay_program").context("no map")?)?;
        Ok(Self { replay, program: program.into() })
    }

    /// Runs a packet with a tag, which the kernel has taken out of it, through a program.
    pub(crate) fn run(&self, datapath: &Datapath, to: &str, tag: u16, packet: &[u8]) -> Result<Outcome> {
        let mut programs = self.program.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        programs.set(0, datapath.program(to)?.fd()?, 0)?;
        let cb = [tag.into(), 0, 0, 0, 0];
        let incoming = Incoming { ingress_ifindex: IFINDEX, cb, ..Incoming::default() };
        run_program(self.replay.program("tagged").context("no program")?.try_into()?, packet, incoming)
    }
}
