#!/bin/bash
exec apiary-cni init install-plugin /host/opt/cni/bin
