//! Errors of the datapath.

/// An error of the datapath.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatapathError {
    /// Programs are not loaded yet.
    #[error("the datapath is not ready yet: programs are being loaded")]
    NotReady,
    /// An endpoint cannot have this id.
    #[error("endpoint id {id} is not valid: ids are 1 to 65535")]
    InvalidId {
        /// The id.
        id: u16,
    },
    /// The interface of an endpoint does not exist.
    #[error("endpoint {id}: there is no interface {ifindex} ({ifname})")]
    NoInterface {
        /// The endpoint.
        id: u16,
        /// The interface's index.
        ifindex: u32,
        /// The interface's name, as in the call.
        ifname: String,
    },
    /// All slots for policy maps are taken.
    #[error("all {slots} slots for policy maps are in use")]
    NoSlot {
        /// The number of slots.
        slots: u32,
    },
    /// The map in a slot cannot be opened, even after it was created again.
    #[error("the policy map in slot {slot} cannot be opened: its pin is removed as soon as it is made")]
    NoMap {
        /// The slot.
        slot: u32,
    },
    /// The endpoint is not attached.
    #[error("endpoint {id} has no policy map: it is not attached")]
    NotAttached {
        /// The id.
        id: u16,
    },
    /// The rows do not fit into the policy map.
    #[error(
        "endpoint {id}: the policy map is full, it holds {capacity} rows; select fewer peers and ports, or raise \
         bpf-policy-map-max"
    )]
    PolicyFull {
        /// The endpoint.
        id: u16,
        /// The map's capacity.
        capacity: usize,
    },
    /// Interfaces of pods still have programs of an earlier load.
    #[error("{failed} of {interfaces} interfaces of pods have not got the new programs: {source}")]
    NotSwitched {
        /// The number of failed interfaces.
        failed: usize,
        /// The number of interfaces of pods.
        interfaces: usize,
        /// The first failure.
        #[source]
        source: Box<DatapathError>,
    },
    /// A device cannot run XDP programs in its driver.
    #[error(
        "device {device} cannot accelerate services: {source}; set bpf-lb-acceleration=best-effort for devices that \
         can, or disabled"
    )]
    NotAccelerated {
        /// The device.
        device: String,
        /// The kernel's error.
        #[source]
        source: bpf::Error,
    },
    /// A map of the node is full.
    #[error(
        "{step}: {source}; its size is fixed: let pods run on other nodes, or remove rows that are not the agent's"
    )]
    Full {
        /// The step, with its subject.
        step: String,
        /// The map and the kernel's error.
        #[source]
        source: bpf::Error,
    },
    /// A step failed in the kernel.
    #[error("{step}: {source}")]
    Kernel {
        /// The step, with its subject.
        step: String,
        /// The kernel's error.
        #[source]
        source: bpf::Error,
    },
    /// The rule against unknown pods could not be read or installed.
    #[error("rule of nftables against unknown pods (table inet apiary): {0}")]
    Rule(#[source] netlink::Error),
    /// A map of the node could not be opened.
    #[error(transparent)]
    Maps(#[from] maps::Error),
    /// A network interface, address or route could not be set.
    #[error(transparent)]
    Netlink(#[from] devices::NetlinkError),
}

impl DatapathError {
    /// Whether the same call may succeed later without any change.
    pub fn is_retryable(&self) -> bool {
        match self {
            DatapathError::NotReady | DatapathError::NoMap { .. } => true,
            DatapathError::Kernel { source, .. } | DatapathError::Full { source, .. } => {
                source.is_retryable()
            }
            DatapathError::NotSwitched { source, .. } => source.is_retryable(),
            DatapathError::Netlink(source) => source.is_retryable(),
            _ => false,
        }
    }
}

/// Adds the step to errors of the kernel.
pub trait Step<T> {
    /// Names the step with its subject; called only on failure.
    ///
    /// # Errors
    /// The error with the step.
    fn step(self, step: impl FnOnce() -> String) -> Result<T, DatapathError>;
}

impl<T> Step<T> for bpf::Result<T> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, DatapathError> {
        self.map_err(|source| match source {
            bpf::Error::Full { .. } => DatapathError::Full { step: step(), source },
            source => DatapathError::Kernel { step: step(), source },
        })
    }
}
