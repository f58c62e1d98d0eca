// The cnitool by which tests call the plugin as a runtime does; tools/cnitool builds it. After a change of the version: go mod tidy.
module apiary/integration-tests/cnitool

go 1.24.0

tool github.com/containernetworking/cni/cnitool

require github.com/containernetworking/cni v1.3.0 // indirect
