//! The options of the datapath as they are now.

use hive::ConfigWatch;

use crate::config::{ConntrackConfig, LoaderConfig, Notifications};
use crate::services::{ServiceSettings, ServicesConfig};
use hive::OptionError;

/// The options in force, and how to notice that they are others.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) config: LoaderConfig,
    pub(crate) conntrack: ConntrackConfig,
    pub(crate) services: ServiceSettings,
    /// The events that are reported to monitors.
    pub(crate) notifications: Notifications,
    watched: (ConfigWatch<LoaderConfig>, ConfigWatch<ConntrackConfig>, ConfigWatch<ServicesConfig>),
}

impl Live {
    /// The options of the start. The hive has checked them, these as those that follow.
    pub(crate) fn new(
        config: ConfigWatch<LoaderConfig>,
        conntrack: ConfigWatch<ConntrackConfig>,
        services: ConfigWatch<ServicesConfig>,
    ) -> Result<Live, OptionError> {
        Ok(Live {
            notifications: config.get().notifications()?,
            services: services.get().settings()?,
            conntrack: (*conntrack.get()).clone(),
            config: (*config.get()).clone(),
            watched: (config, conntrack, services),
        })
    }

    /// Waits for other options, and takes them.
    pub(crate) async fn changed(&mut self) -> Result<(), OptionError> {
        let (config, conntrack, services) = &mut self.watched;
        tokio::select! {
            () = config.changed() => {}
            () = conntrack.changed() => {}
            () = services.changed() => {}
        }
        *self = Live::new(config.clone(), conntrack.clone(), services.clone())?;
        Ok(())
    }
}
