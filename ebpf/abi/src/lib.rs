//! Keys, values, constants and events shared by the datapath, the agent and the command line.
