{{- /* Whether the chart installs an Envoy beside the agents. */ -}}
{{- define "apiary.envoy" -}}
{{- and .Values.agent .Values.l7Proxy .Values.envoy.enabled -}}
{{- end }}

{{- /* The bootstrap of that Envoy as JSON: the connection to the agent, which gives it clusters and listeners, and listeners for
       probes and metrics. */ -}}
{{- define "apiary.envoyBootstrap" -}}
{{- $envoy := .Values.envoy -}}
{{- $sockets := "/var/run/cilium/envoy/sockets" -}}
{{- $timeout := printf "%ds" (int64 $envoy.connectTimeoutSeconds) -}}
{{- $v4 := .Values.ipv4.enabled -}}
{{- $loopback := ternary "127.0.0.1" "::1" $v4 -}}
{{- $any := ternary "0.0.0.0" "::" $v4 -}}
{{- $clusters := list -}}
{{- range $name, $socket := dict "xds-grpc-cilium" "xds.sock" "/envoy-admin" "admin.sock" -}}
  {{- $pipe := dict "pipe" (dict "path" (printf "%s/%s" $sockets $socket)) -}}
  {{- $endpoints := list (dict "lbEndpoints" (list (dict "endpoint" (dict "address" $pipe)))) -}}
  {{- $cluster := dict "name" $name "type" "STATIC" "connectTimeout" $timeout "loadAssignment" (dict "clusterName" $name "endpoints" $endpoints) -}}
  {{- if eq $name "xds-grpc-cilium" -}}
    {{- $type := "envoy.extensions.upstreams.http.v3.HttpProtocolOptions" -}}
    {{- $http2 := dict "@type" (printf "type.googleapis.com/%s" $type) "explicitHttpConfig" (dict "http2ProtocolOptions" dict) -}}
    {{- $_ := set $cluster "typedExtensionProtocolOptions" (dict $type $http2) -}}
  {{- end -}}
  {{- $clusters = append $clusters $cluster -}}
{{- end -}}
{{- $listeners := list (dict "name" "envoy-health-listener" "host" $loopback "port" $envoy.healthPort "from" "/healthz" "to" "/ready") -}}
{{- if $envoy.prometheus.enabled -}}
  {{- $listeners = append $listeners (dict "name" "envoy-prometheus-metrics-listener" "host" $any "port" $envoy.prometheus.port "from" "/metrics" "to" "/stats/prometheus") -}}
{{- end -}}
{{- if $envoy.debug.admin.enabled -}}
  {{- $listeners = append $listeners (dict "name" "envoy-admin-listener" "host" $loopback "port" $envoy.debug.admin.port "from" "/" "to" "/") -}}
{{- end -}}
{{- $static := list -}}
{{- range $listeners -}}
  {{- $route := dict "match" (dict "prefix" .from) "route" (dict "cluster" "/envoy-admin" "prefixRewrite" .to) -}}
  {{- $hosts := list (dict "name" .name "domains" (list "*") "routes" (list $route)) -}}
  {{- $router := dict "name" "envoy.filters.http.router" "typedConfig" (dict "@type" "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router") -}}
  {{- $manager := dict "@type" "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager" "statPrefix" .name "routeConfig" (dict "virtualHosts" $hosts) "httpFilters" (list $router) "streamIdleTimeout" "0s" -}}
  {{- $filter := dict "name" "envoy.filters.network.http_connection_manager" "typedConfig" $manager -}}
  {{- $socket := dict "socketAddress" (dict "address" .host "portValue" (int64 .port)) -}}
  {{- $static = append $static (dict "name" .name "address" $socket "filterChains" (list (dict "filters" (list $filter)))) -}}
{{- end -}}
{{- $api := dict "apiType" "GRPC" "transportApiVersion" "V3" "setNodeOnFirstMessageOnly" true "grpcServices" (list (dict "envoyGrpc" (dict "clusterName" "xds-grpc-cilium"))) -}}
{{- $source := dict "apiConfigSource" $api "resourceApiVersion" "V3" "initialFetchTimeout" (printf "%ds" (int64 $envoy.initialFetchTimeoutSeconds)) -}}
{{- $internal := dict "name" "envoy.bootstrap.internal_listener" "typedConfig" (dict "@type" "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener") -}}
{{- $limit := dict "@type" "type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig" "maxActiveDownstreamConnections" (int64 $envoy.maxGlobalDownstreamConnections) -}}
{{- $monitor := dict "name" "envoy.resource_monitors.global_downstream_max_connections" "typedConfig" $limit -}}
{{- dict
    "node" (dict "id" "host~127.0.0.1~no-id~localdomain" "cluster" "ingress-cluster")
    "staticResources" (dict "clusters" $clusters "listeners" $static)
    "dynamicResources" (dict "ldsConfig" $source "cdsConfig" $source)
    "bootstrapExtensions" (list $internal)
    "overloadManager" (dict "resourceMonitors" (list $monitor))
    "admin" (dict "address" (dict "pipe" (dict "path" (printf "%s/admin.sock" $sockets))))
  | toJson -}}
{{- end }}
