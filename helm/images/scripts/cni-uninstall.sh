#!/bin/bash
exec apiary-cni init uninstall-plugin /host/etc/cni/net.d
