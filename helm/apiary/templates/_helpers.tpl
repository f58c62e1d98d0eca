{{- /* Labels of every object. */ -}}
{{- define "apiary.labels" -}}
app.kubernetes.io/part-of: cilium
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The image of an `image` value. */ -}}
{{- define "apiary.image" -}}
{{- $image := .image -}}
{{- if $image.override -}}
{{ $image.override }}
{{- else if and $image.digest (ne (toString $image.useDigest) "false") -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .appVersion }}
{{- end -}}
{{- end }}

{{- define "apiary.chainingMode" -}}
{{- if not (kindIs "invalid" .Values.cni.chainingMode) -}}
{{ .Values.cni.chainingMode }}
{{- else if not (kindIs "invalid" .Values.cni.chainingTarget) -}}
generic-veth
{{- else -}}
none
{{- end -}}
{{- end }}

{{- /* Whether nodes have a health endpoint: its addresses are no other plugin's. */ -}}
{{- define "apiary.healthEndpoint" -}}
{{- and .Values.healthChecking .Values.endpointHealthChecking.enabled (has (include "apiary.chainingMode" .) (list "none" "portmap")) -}}
{{- end }}

{{- /* Whether programs of a cgroup translate services at sockets. */ -}}
{{- define "apiary.socketPrograms" -}}
{{- or .Values.socketLB.enabled (eq (toString .Values.kubeProxyReplacement) "true") -}}
{{- end }}

{{- /* Whether metrics of flows are served. */ -}}
{{- define "apiary.hubbleMetrics" -}}
{{- with .Values.hubble -}}
{{- and .enabled (or (not (empty .metrics.enabled)) .metrics.dynamic.enabled) -}}
{{- end -}}
{{- end }}

{{- /* Whether an Envoy runs beside the agent. */ -}}
{{- define "apiary.hasEnvoy" -}}
{{- or (eq (include "apiary.envoy" .) "true") (eq (toString (get .Values.extraConfig "external-envoy-proxy")) "true") -}}
{{- end }}

{{- /* Whether the operator copies secrets for Envoys. */ -}}
{{- define "apiary.syncsSecrets" -}}
{{- and (eq (include "apiary.hasEnvoy" .) "true") (eq (toString .Values.tls.secretSync.enabled) "true") (ne .Values.tls.secretsNamespace.name "") -}}
{{- end }}

{{- /* The variables by which processes find an API server that is not behind the service of the cluster. */ -}}
{{- define "apiary.apiServer" -}}
{{- $host := .Values.k8sServiceHost }}
{{- $port := .Values.k8sServicePort }}
{{- if eq $host "auto" }}
{{- $found := splitList ":" (include "apiary.clusterInfo" .) }}
{{- $host = join ":" (initial $found) }}
{{- $port = last $found }}
{{- end }}
{{- with $host }}
- name: KUBERNETES_SERVICE_HOST
  value: {{ . | quote }}
{{- end }}
{{- with .Values.k8sServiceHostRef }}
{{- if .name }}
- name: KUBERNETES_SERVICE_HOST
  valueFrom: {configMapKeyRef: {name: {{ .name }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- with $port }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ . | int64 | toString | quote }}
{{- end }}
{{- end }}

{{- /* HOST:PORT of the API server by the ConfigMap that kubeadm writes for nodes that join; empty if there is none. */ -}}
{{- define "apiary.clusterInfo" -}}
{{- $namespace := .Values.k8sServiceLookupNamespace | default "kube-public" -}}
{{- $map := lookup "v1" "ConfigMap" $namespace (.Values.k8sServiceLookupConfigMapName | default "cluster-info") -}}
{{- $clusters := dig "data" "kubeconfig" "" ($map | default dict) | fromYaml | dig "clusters" list -}}
{{- with $clusters -}}
{{- $address := dig "cluster" "server" "" (first .) | trimPrefix "https://" | trimSuffix "/" -}}
{{- if $address -}}
{{- regexMatch ":[0-9]+$" $address | ternary $address (printf "%s:443" $address) | replace "[" "" | replace "]" "" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* The file by which processes find the API server, where kubeConfigPath names one of the node. */ -}}
{{- define "apiary.kubeConfigMount" -}}
{{- with .Values.kubeConfigPath }}
- {name: kube-config, mountPath: {{ . | quote }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "apiary.kubeConfigVolume" -}}
{{- with .Values.kubeConfigPath }}
- {name: kube-config, hostPath: {path: {{ . | quote }}, type: File}}
{{- end }}
{{- end }}

{{- /* Mounts of folders and files of the node: a list as extraHostPathMounts. */ -}}
{{- define "apiary.hostPathMounts" -}}
{{- range . }}
- {name: {{ .name }}, mountPath: {{ .mountPath | quote }}, readOnly: {{ .readOnly | default false }}{{ with .mountPropagation }}, mountPropagation: {{ . }}{{ end }}}
{{- end }}
{{- end }}

{{- define "apiary.hostPathVolumes" -}}
{{- range . }}
- {name: {{ .name }}, hostPath: {path: {{ .hostPath | quote }}{{ with .hostPathType }}, type: {{ . }}{{ end }}}}
{{- end }}
{{- end }}

{{- /* The name of a pod's priority: root, the value, the name that critical pods have by default. */ -}}
{{- define "apiary.priority" -}}
{{- with .value | default (.root.Values.enableCriticalPriorityClass | ternary .critical "") -}}
priorityClassName: {{ . }}
{{- end -}}
{{- end }}

{{- /* The security context of a pod: root and its members; clusters before Kubernetes 1.30 know no appArmorProfile. */ -}}
{{- define "apiary.podSecurity" -}}
{{- $context := .context -}}
{{- if not (semverCompare ">=1.30-0" .root.Capabilities.KubeVersion.Version) -}}
{{- $context = omit $context "appArmorProfile" -}}
{{- end -}}
{{- with $context -}}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end }}

{{- /* Where a process runs, by which it finds its objects. */ -}}
{{- define "apiary.place" -}}
- name: K8S_NODE_NAME
  valueFrom: {fieldRef: {apiVersion: v1, fieldPath: spec.nodeName}}
- name: CILIUM_K8S_NAMESPACE
  valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}
{{- end }}

{{- /* The security context of the steps that enter the mount namespace of the host, which takes setns(2), and to open
       /proc/1/ns: root, capabilities. */ -}}
{{- define "apiary.hostStep" -}}
{{- if .root.Values.securityContext.privileged -}}
{privileged: true}
{{- else -}}
allowPrivilegeEscalation: false
capabilities:
  add: {{ .capabilities | toJson }}
  drop: [ALL]
{{- end -}}
{{- end }}

{{- /* The value at a path of .Values as JSON: {"value": null} if there is none. */ -}}
{{- define "apiary.value" -}}
{{- $value := .values -}}
{{- $found := true -}}
{{- range splitList "." .path -}}
  {{- $found = and $found (kindIs "map" $value) -}}
  {{- if $found -}}{{- $found = hasKey $value . -}}{{- end -}}
  {{- if $found -}}{{- $value = get $value . -}}{{- end -}}
{{- end -}}
{{- if $found -}}{{- dict "value" $value | toJson -}}{{- else -}}{"value": null}{{- end -}}
{{- end }}

{{- /* Ranges as a list in JSON: of a list, or of a text with a space or a comma between them (--set of a single one). */ -}}
{{- define "apiary.ranges" -}}
{{- if kindIs "string" . -}}{{- regexSplit "[ ,]+" (. | trim | trimAll ",") -1 | compact | toJson -}}{{- else -}}{{- toJson . -}}{{- end -}}
{{- end }}

{{- /* The data of ConfigMap cilium-config: what is computed, the copies that options.tsv lists, extraConfig. */ -}}
{{- define "apiary.config" -}}
{{- $values := .Values -}}
{{- $data := dict -}}
{{- range .Files.Lines "options.tsv" -}}
  {{- $columns := splitList "\t" . -}}
  {{- if and (eq (len $columns) 3) (not (hasPrefix "#" .)) -}}
    {{- $form := index $columns 2 -}}
    {{- $value := get (include "apiary.value" (dict "values" $values "path" (index $columns 1)) | fromJson) "value" -}}
    {{- if not (or (kindIs "invalid" $value) (and (hasSuffix "?" $form) (empty $value))) -}}
      {{- $form = trimSuffix "?" $form -}}
      {{- if eq $form "int" -}}{{- $value = int64 $value -}}
      {{- else if and (eq $form "space") (kindIs "slice" $value) -}}{{- $value = join " " $value -}}
      {{- else if and (eq $form "comma") (kindIs "slice" $value) -}}{{- $value = join "," $value -}}
      {{- else if eq $form "json" -}}{{- $value = toJson $value -}}
      {{- end -}}
      {{- $_ := set $data (index $columns 0) (toString $value) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- with $values -}}
  {{- $masquerade := .enableIPv4Masquerade -}}
  {{- if kindIs "invalid" $masquerade -}}{{- $masquerade = true -}}{{- end -}}
  {{- $_ := set $data "enable-ipv4-masquerade" (toString $masquerade) -}}
  {{- if ne (int64 .healthPort) 9879 -}}{{- $_ := set $data "agent-health-port" (.healthPort | int64 | toString) -}}{{- end -}}
  {{- with .configDriftDetection -}}
    {{- $_ := set $data "enable-drift-checker" (and .enabled .driftChecker | toString) -}}
    {{- with .ignoredKeys | default .ignoredFlags -}}{{- $_ := set $data "ignore-flags-drift-checker" (join "," .) -}}{{- end -}}
  {{- end -}}
  {{- if .envoyConfig.enabled -}}{{- $_ := set $data "envoy-config-retry-interval" .envoyConfig.retryInterval -}}{{- end -}}
  {{- if or .localRedirectPolicy .localRedirectPolicies.enabled -}}{{- $_ := set $data "enable-local-redirect-policy" "true" -}}{{- end -}}
  {{- $_ := set $data "routing-mode" (.routingMode | default "tunnel") -}}
  {{- $_ := set $data "tunnel-protocol" (.tunnelProtocol | default "vxlan") -}}
  {{- $_ := set $data "kube-proxy-replacement" (toString .kubeProxyReplacement) -}}
  {{- if eq (toString .kubeProxyReplacement) "true" -}}
    {{- $_ := set $data "kube-proxy-replacement-healthz-bind-address" (.kubeProxyReplacementHealthzBindAddr | default "") -}}
  {{- end -}}
  {{- $_ := set $data "enable-endpoint-health-checking" (include "apiary.healthEndpoint" $) -}}
  {{- $chaining := include "apiary.chainingMode" $ -}}
  {{- $legacy := .bpf.hostLegacyRouting -}}
  {{- if ne $chaining "none" -}}
    {{- $_ := set $data "cni-chaining-mode" $chaining -}}
    {{- if kindIs "invalid" $legacy -}}{{- $legacy = true -}}{{- end -}}
    {{- if ne $chaining "portmap" -}}{{- $_ := set $data "enable-local-node-route" "false" -}}{{- end -}}
  {{- end -}}
  {{- if not (kindIs "invalid" $legacy) -}}{{- $_ := set $data "enable-host-legacy-routing" (toString $legacy) -}}{{- end -}}
  {{- if and .cni.install (not .cni.customConf) -}}
    {{- $_ := set $data "write-cni-conf-when-ready" (printf "%s/05-cilium.conflist" .cni.hostConfDirMountPath) -}}
    {{- $_ := set $data "cni-exclusive" (toString .cni.exclusive) -}}
    {{- $_ := set $data "cni-log-file" .cni.logFile -}}
  {{- end -}}
  {{- if .cni.configMap -}}
    {{- $_ := set $data "read-cni-conf" (printf "%s/%s" .cni.confFileMountPath .cni.configMapKey) -}}
  {{- end -}}
  {{- if eq (include "apiary.envoy" $) "true" -}}{{- $_ := set $data "external-envoy-proxy" "true" -}}{{- end -}}
  {{- if not .securityContext.privileged -}}{{- $_ := set $data "procfs" "/host/proc" -}}{{- end -}}
  {{- with .prometheus -}}
    {{- if .enabled -}}
      {{- $_ := set $data "prometheus-serve-addr" (printf ":%d" (int64 .port)) -}}
      {{- with .metrics -}}{{- $_ := set $data "metrics" (join " " .) -}}{{- end -}}
    {{- end -}}
  {{- end -}}
  {{- if and .authentication.enabled .authentication.mutual.spire.enabled -}}
    {{- with .authentication.mutual -}}
      {{- $_ := set $data "mesh-auth-mutual-listener-port" (.port | int64 | toString) -}}
      {{- $_ := set $data "mesh-auth-mutual-connect-timeout" .connectTimeout -}}
      {{- $_ := set $data "mesh-auth-spire-admin-socket" .spire.adminSocketPath -}}
      {{- $_ := set $data "mesh-auth-spiffe-trust-domain" .spire.trustDomain -}}
    {{- end -}}
  {{- end -}}
  {{- if .standaloneDnsProxy.enabled -}}
    {{- $_ := set $data "enable-standalone-dns-proxy" "true" -}}
    {{- $_ := set $data "standalone-dns-proxy-server-port" (.standaloneDnsProxy.serverPort | int64 | toString) -}}
  {{- end -}}
  {{- if and .envoyConfig.enabled .envoyConfig.secretsNamespace.name -}}
    {{- $_ := set $data "envoy-secrets-namespace" .envoyConfig.secretsNamespace.name -}}
  {{- end -}}
  {{- if and .hubble.enabled .hubble.listenAddress -}}
    {{- $_ := set $data "hubble-listen-address" .hubble.listenAddress -}}
    {{- $_ := set $data "hubble-disable-tls" (not .hubble.tls.enabled | toString) -}}
    {{- if .hubble.tls.enabled -}}
      {{- $_ := set $data "hubble-tls-cert-file" "/var/lib/cilium/tls/hubble/server.crt" -}}
      {{- $_ := set $data "hubble-tls-key-file" "/var/lib/cilium/tls/hubble/server.key" -}}
      {{- $_ := set $data "hubble-tls-client-ca-files" "/var/lib/cilium/tls/hubble/client-ca.crt" -}}
    {{- end -}}
  {{- end -}}
  {{- if .hubble.enabled -}}
    {{- $_ := set $data "hubble-network-policy-correlation-enabled" (toString .hubble.networkPolicyCorrelation.enabled) -}}
    {{- if eq (toString .hubble.skipUnknownCGroupIDs) "false" -}}
      {{- $_ := set $data "hubble-skip-unknown-cgroup-ids" "false" -}}
    {{- end -}}
    {{- if .hubble.redact.enabled -}}
      {{- $_ := set $data "hubble-redact-enabled" "true" -}}
      {{- with .hubble.redact.http -}}
        {{- $_ := set $data "hubble-redact-http-urlquery" (toString .urlQuery) -}}
        {{- $_ := set $data "hubble-redact-http-userinfo" (toString .userInfo) -}}
        {{- with .headers.allow -}}{{- $_ := set $data "hubble-redact-http-headers-allow" (join "," .) -}}{{- end -}}
        {{- with .headers.deny -}}{{- $_ := set $data "hubble-redact-http-headers-deny" (join "," .) -}}{{- end -}}
      {{- end -}}
    {{- end -}}
    {{- with .hubble.export.static -}}
      {{- if .enabled -}}
        {{- $_ := set $data "hubble-export-file-path" .filePath -}}
        {{- $_ := set $data "hubble-export-file-max-size-mb" (.fileMaxSizeMb | int64 | toString) -}}
        {{- $_ := set $data "hubble-export-file-max-backups" (.fileMaxBackups | int64 | toString) -}}
        {{- $_ := set $data "hubble-export-file-compress" (toString .fileCompress) -}}
        {{- with .allowList -}}{{- $_ := set $data "hubble-export-allowlist" (join " " .) -}}{{- end -}}
        {{- with .denyList -}}{{- $_ := set $data "hubble-export-denylist" (join " " .) -}}{{- end -}}
        {{- with .fieldMask -}}{{- $_ := set $data "hubble-export-fieldmask" (join " " .) -}}{{- end -}}
        {{- with .fieldAggregate -}}
          {{- $_ := set $data "hubble-export-fieldaggregate" (join " " .) -}}
          {{- $_ := set $data "hubble-export-aggregation-interval" $values.hubble.export.static.aggregationInterval -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
    {{- if .hubble.export.dynamic.enabled -}}
      {{- $_ := set $data "hubble-flowlogs-config-path" "/flowlog-config/flowlogs.yaml" -}}
    {{- end -}}
    {{- with .hubble.dropEventEmitter -}}
      {{- if .enabled -}}
        {{- $_ := set $data "hubble-drop-events" "true" -}}
        {{- $_ := set $data "hubble-drop-events-interval" .interval -}}
        {{- $_ := set $data "hubble-drop-events-reasons" (join " " .reasons) -}}
      {{- end -}}
    {{- end -}}
    {{- with .hubble.metrics -}}
      {{- if eq (include "apiary.hubbleMetrics" $) "true" -}}
        {{- $_ := set $data "hubble-metrics-server" (printf ":%d" (int64 .port)) -}}
        {{- with .enabled -}}{{- $_ := set $data "hubble-metrics" (join " " .) -}}{{- end -}}
        {{- if .enableOpenMetrics -}}{{- $_ := set $data "enable-hubble-open-metrics" "true" -}}{{- end -}}
        {{- if .tls.enabled -}}
          {{- $_ := set $data "hubble-metrics-server-enable-tls" "true" -}}
          {{- $_ := set $data "hubble-metrics-server-tls-cert-file" "/var/lib/cilium/tls/hubble-metrics/server.crt" -}}
          {{- $_ := set $data "hubble-metrics-server-tls-key-file" "/var/lib/cilium/tls/hubble-metrics/server.key" -}}
          {{- if .tls.server.mtls.enabled -}}
            {{- $_ := set $data "hubble-metrics-server-tls-client-ca-files" "/var/lib/cilium/tls/hubble-metrics/client-ca.crt" -}}
          {{- end -}}
        {{- end -}}
        {{- if .dynamic.enabled -}}
          {{- $_ := set $data "hubble-dynamic-metrics-config-path" "/dynamic-metrics-config/dynamic-metrics.yaml" -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
  {{- if .operator.prometheus.enabled -}}
    {{- $_ := set $data "enable-metrics" "true" -}}
    {{- $_ := set $data "operator-prometheus-serve-addr" (printf ":%d" (int64 .operator.prometheus.port)) -}}
    {{- with .operator.prometheus.tls -}}
      {{- if .enabled -}}
        {{- $_ := set $data "operator-prometheus-enable-tls" "true" -}}
        {{- $_ := set $data "operator-prometheus-tls-cert-file" "/var/lib/cilium/tls/prometheus/server.crt" -}}
        {{- $_ := set $data "operator-prometheus-tls-key-file" "/var/lib/cilium/tls/prometheus/server.key" -}}
        {{- if .server.mtls.enabled -}}
          {{- $_ := set $data "operator-prometheus-tls-client-ca-files" "/var/lib/cilium/tls/prometheus/client-ca.crt" -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
  {{- with .ciliumEndpointSlice -}}
    {{- if .enabled -}}{{- $_ := set $data "ces-rate-limits" (toJson .rateLimits) -}}{{- end -}}
  {{- end -}}
  {{- $taints := .operator.setNodeTaints -}}
  {{- if kindIs "invalid" $taints -}}{{- $taints = .operator.removeNodeTaints -}}{{- end -}}
  {{- $_ := set $data "set-cilium-node-taints" (toString $taints) -}}
  {{- with .operator.unmanagedPodWatcher -}}
    {{- $_ := set $data "unmanaged-pod-watcher-interval" (.restart | ternary (printf "%ds" (int64 .intervalSeconds)) "0") -}}
  {{- end -}}
  {{- $serves := .operator.hostNetwork | ternary (list "127.0.0.1:9234" "[::1]:9234") (list "0.0.0.0:9234" "[::]:9234") -}}
  {{- $_ := set $data "operator-api-serve-addr" (index $serves (ternary 0 1 .ipv4.enabled)) -}}
  {{- with .ipam.operator -}}
    {{- if eq $values.ipam.mode "cluster-pool" -}}
      {{- if $values.ipv4.enabled -}}
        {{- $_ := set $data "cluster-pool-ipv4-cidr" (include "apiary.ranges" .clusterPoolIPv4PodCIDRList | fromJsonArray | join " ") -}}
        {{- $_ := set $data "cluster-pool-ipv4-mask-size" (.clusterPoolIPv4MaskSize | int64 | toString) -}}
        {{- if $values.nativeRoutingCIDRFromClusterPool -}}
          {{- $_ := set $data "ipv4-native-routing-cidr" (include "apiary.ranges" .clusterPoolIPv4PodCIDRList | fromJsonArray | first) -}}
        {{- end -}}
      {{- end -}}
      {{- if $values.ipv6.enabled -}}
        {{- $_ := set $data "cluster-pool-ipv6-cidr" (include "apiary.ranges" .clusterPoolIPv6PodCIDRList | fromJsonArray | join " ") -}}
        {{- $_ := set $data "cluster-pool-ipv6-mask-size" (.clusterPoolIPv6MaskSize | int64 | toString) -}}
        {{- if $values.nativeRoutingCIDRFromClusterPool -}}
          {{- $_ := set $data "ipv6-native-routing-cidr" (include "apiary.ranges" .clusterPoolIPv6PodCIDRList | fromJsonArray | first) -}}
        {{- end -}}
      {{- end -}}
    {{- else if and (eq $values.ipam.mode "multi-pool") .autoCreateCiliumPodIPPools -}}
      {{- $pools := list -}}
      {{- range $pool, $spec := .autoCreateCiliumPodIPPools -}}
        {{- $parts := list -}}
        {{- range $family := list "ipv4" "ipv6" -}}
          {{- with get $spec $family -}}
            {{- $parts = append $parts (printf "%s-cidrs:%s" $family (join "," .cidrs)) -}}
            {{- $parts = append $parts (printf "%s-mask-size:%d" $family (int64 .maskSize)) -}}
          {{- end -}}
        {{- end -}}
        {{- $pools = append $pools (printf "%s=%s" $pool (join ";" $parts)) -}}
      {{- end -}}
      {{- $_ := set $data "auto-create-cilium-pod-ip-pools" (join "," $pools) -}}
    {{- end -}}
  {{- end -}}
  {{- range $key, $value := .extraConfig -}}
    {{- $_ := set $data $key (kindIs "string" $value | ternary $value (toJson $value)) -}}
  {{- end -}}
{{- end -}}
{{- range $key, $value := $data }}
{{ $key }}: {{ $value | quote }}
{{- end }}
{{- end }}
