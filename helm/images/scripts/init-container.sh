#!/bin/bash
exec apiary-cni init clean-state
