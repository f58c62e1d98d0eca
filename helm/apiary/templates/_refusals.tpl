{{- /* Fails with every value at fault: its path, and what to do instead. Types and unknown names are the matter of
       values.schema.json, which is checked before. */ -}}
{{- define "apiary.refuse" -}}
{{- $faults := list -}}
{{- $values := .Values -}}
{{- range $file, $reason := dict "not-built.tsv" "is not built" "removed.tsv" "is no value of Cilium 1.20" -}}
  {{- range $.Files.Lines $file -}}
    {{- $columns := splitList "\t" . -}}
    {{- if and (eq (len $columns) 3) (not (hasPrefix "#" .)) -}}
      {{- $value := get (include "apiary.value" (dict "values" $values "path" (index $columns 0)) | fromJson) "value" -}}
      {{- if not (or (kindIs "invalid" $value) (has (toString $value) (append (splitList "|" (index $columns 1)) ""))) -}}
        {{- $faults = append $faults (printf "%s: %s: %s" (index $columns 0) $reason (index $columns 2)) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- /* Objects of the whole cluster are of one release; two agents on a node would replace each other's programs. */ -}}
{{- with lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "cilium" -}}
  {{- $annotations := .metadata.annotations | default dict -}}
  {{- $name := get $annotations "meta.helm.sh/release-name" -}}
  {{- $namespace := get $annotations "meta.helm.sh/release-namespace" -}}
  {{- if and $name (or (ne $name $.Release.Name) (ne $namespace $.Release.Namespace)) -}}
    {{- $faults = append $faults (printf "(release): this cluster has the release %s in the namespace %s already: upgrade that one, or uninstall it first" $name $namespace) -}}
  {{- end -}}
{{- end -}}
{{- with $values -}}
  {{- $config := include "apiary.config" $ | fromYaml -}}
  {{- if not (or .ipv4.enabled .ipv6.enabled) -}}
    {{- $faults = append $faults "ipv4.enabled: both families are off: set it or ipv6.enabled to true" -}}
  {{- end -}}
  {{- if and (eq .cluster.name "default") (ne (int64 .cluster.id) 0) -}}
    {{- $faults = append $faults "cluster.name: a cluster with a cluster.id other than 0 must not be called default: give it another name" -}}
  {{- end -}}
  {{- if gt (int64 .cluster.id) (int64 .clustermesh.maxConnectedClusters) -}}
    {{- $faults = append $faults (printf "cluster.id: %d is beyond clustermesh.maxConnectedClusters (%d): give a lower one" (int64 .cluster.id) (int64 .clustermesh.maxConnectedClusters)) -}}
  {{- end -}}
  {{- $risky := or (and (ge (int64 .cluster.id) 128) (le (int64 .cluster.id) 255)) (and (ge (int64 .cluster.id) 384) (le (int64 .cluster.id) 511)) -}}
  {{- if and $risky (eq (include "apiary.chainingMode" $) "aws-cni") (ne (get $config "allow-unsafe-policy-skb-usage") "true") -}}
    {{- $faults = append $faults "cluster.id: 128 to 255 and 384 to 511 use bits of the mark that the AWS plugin uses: give another one" -}}
  {{- end -}}
  {{- $pools := and .nativeRoutingCIDRFromClusterPool (eq .ipam.mode "cluster-pool") -}}
  {{- if and .nativeRoutingCIDRFromClusterPool (ne .ipam.mode "cluster-pool") -}}
    {{- $faults = append $faults "nativeRoutingCIDRFromClusterPool: needs ipam.mode cluster-pool" -}}
  {{- end -}}
  {{- range $family := list "4" "6" -}}
    {{- $enabled := get (get $values (printf "ipv%s" $family)) "enabled" -}}
    {{- $list := include "apiary.ranges" (get $values.ipam.operator (printf "clusterPoolIPv%sPodCIDRList" $family)) | fromJsonArray -}}
    {{- if and $enabled (eq $values.ipam.mode "cluster-pool") (empty $list) -}}
      {{- $faults = append $faults (printf "ipam.operator.clusterPoolIPv%sPodCIDRList: is empty: give a range" $family) -}}
    {{- end -}}
    {{- if and $pools $enabled (ne (len $list) 1) -}}
      {{- $faults = append $faults (printf "nativeRoutingCIDRFromClusterPool: needs exactly one range in ipam.operator.clusterPoolIPv%sPodCIDRList" $family) -}}
    {{- end -}}
    {{- $option := printf "ipv%s-native-routing-cidr" $family -}}
    {{- $masquerade := eq (get $config (printf "enable-ipv%s-masquerade" $family)) "true" -}}
    {{- if and $enabled $masquerade (has $values.routingMode (list "native" "hybrid")) (not $values.ipMasqAgent.enabled) (not (get $config $option)) -}}
      {{- $faults = append $faults (printf "ipv%sNativeRoutingCIDR: routingMode native or hybrid with masquerading needs the range that is not masqueraded" $family) -}}
    {{- end -}}
  {{- end -}}
  {{- if and .ipMasqAgent.enabled (ne (get $config "enable-bpf-masquerade") "true") -}}
    {{- $faults = append $faults "ipMasqAgent.enabled: needs bpf.masquerade true: iptables masquerades without such ranges" -}}
  {{- end -}}
  {{- if and .hubble.metrics.enabled .hubble.metrics.dynamic.enabled -}}
    {{- $faults = append $faults "hubble.metrics.enabled: hubble.metrics.dynamic.enabled is true as well: leave one of them out" -}}
  {{- end -}}
  {{- $hasMonitors := or .prometheus.serviceMonitor.trustCRDsExist ($.Capabilities.APIVersions.Has "monitoring.coreos.com/v1") -}}
  {{- range $path := list "prometheus" "operator.prometheus" "hubble.metrics" "envoy.prometheus" "hubble.relay.prometheus" -}}
    {{- $monitor := get (include "apiary.value" (dict "values" $values "path" (printf "%s.serviceMonitor" $path)) | fromJson) "value" -}}
    {{- if and $monitor.enabled (not (or $hasMonitors $monitor.trustCRDsExist)) -}}
      {{- $faults = append $faults (printf "%s.serviceMonitor.enabled: the cluster has no kind ServiceMonitor: install Prometheus' operator first, or set %s.serviceMonitor.trustCRDsExist true" $path $path) -}}
    {{- end -}}
  {{- end -}}
  {{- if and .operator.prometheus.enabled .operator.prometheus.tls.enabled (not .operator.prometheus.tls.server.existingSecret) -}}
    {{- $faults = append $faults "operator.prometheus.tls.server.existingSecret: is empty: give the secret with the certificate of the operator" -}}
  {{- end -}}
  {{- with .hubble.redact -}}
    {{- if and .enabled .http.headers.allow .http.headers.deny -}}
      {{- $faults = append $faults "hubble.redact.http.headers: give allow or deny, not both" -}}
    {{- end -}}
  {{- end -}}
  {{- if and .authentication.enabled .authentication.mutual.spire.enabled .authentication.mutual.spire.install.enabled -}}
    {{- $faults = append $faults "authentication.mutual.spire.install.enabled: is not built: install SPIRE by a chart of its own, and set it to false" -}}
  {{- end -}}
  {{- if .standaloneDnsProxy.enabled -}}
    {{- if not .l7Proxy -}}
      {{- $faults = append $faults "standaloneDnsProxy.enabled: needs l7Proxy true" -}}
    {{- end -}}
    {{- if eq (int64 .dnsProxy.proxyPort) 0 -}}
      {{- $faults = append $faults "standaloneDnsProxy.enabled: needs a port in dnsProxy.proxyPort, such as 10094" -}}
    {{- else if eq (int64 .dnsProxy.proxyPort) (int64 .standaloneDnsProxy.serverPort) -}}
      {{- $faults = append $faults "standaloneDnsProxy.serverPort: is dnsProxy.proxyPort, too: give another port" -}}
    {{- end -}}
  {{- end -}}
  {{- if and .subnetTopology (ne .routingMode "hybrid") -}}
    {{- $faults = append $faults "subnetTopology: needs routingMode hybrid" -}}
  {{- end -}}
  {{- if and .autoDirectNodeRoutes (not (has .routingMode (list "native" "hybrid"))) -}}
    {{- $faults = append $faults "autoDirectNodeRoutes: needs routingMode native or hybrid" -}}
  {{- end -}}
  {{- if and .ciliumEndpointSlice.enabled .disableEndpointCRD -}}
    {{- $faults = append $faults "ciliumEndpointSlice.enabled: there are no slices with disableEndpointCRD: set one of the two to false" -}}
  {{- end -}}
  {{- if and .operator.setNodeTaints (not .operator.removeNodeTaints) -}}
    {{- $faults = append $faults "operator.setNodeTaints: nothing removes the taints with operator.removeNodeTaints false: set both or neither" -}}
  {{- end -}}
  {{- $hasRef := not (empty .k8sServiceHostRef.name) -}}
  {{- if and (eq .k8sServiceHost "auto") (not (include "apiary.clusterInfo" $)) -}}
    {{- $faults = append $faults "k8sServiceHost: auto needs a ConfigMap cluster-info in kube-public with the address of the API server, and helm at the cluster: give the host instead" -}}
  {{- end -}}
  {{- if and (ne .k8sServiceHost "auto") (ne (and (empty .k8sServiceHost) (not $hasRef)) (empty .k8sServicePort)) -}}
    {{- $faults = append $faults "k8sServiceHost: needs k8sServicePort, and the other way round" -}}
  {{- end -}}
  {{- if and $hasRef .k8sServiceHost -}}
    {{- $faults = append $faults "k8sServiceHostRef: k8sServiceHost has a value, too: leave one of them out" -}}
  {{- end -}}
  {{- if ne $hasRef (not (empty .k8sServiceHostRef.key)) -}}
    {{- $faults = append $faults "k8sServiceHostRef: needs the name of a ConfigMap and a key" -}}
  {{- end -}}
  {{- if and .cni.configMap .cni.readCniConf -}}
    {{- $faults = append $faults "cni.configMap: cni.readCniConf has a value, too: leave one of them out" -}}
  {{- end -}}
  {{- if and .envoy.enabled (not .l7Proxy) -}}
    {{- $faults = append $faults "envoy.enabled: needs l7Proxy true" -}}
  {{- end -}}
  {{- if and .hubble.relay.enabled (not (and .hubble.enabled .hubble.listenAddress)) -}}
    {{- $faults = append $faults "hubble.relay.enabled: needs hubble.enabled true and a hubble.listenAddress" -}}
  {{- end -}}
  {{- if and .hubble.ui.enabled (not .hubble.relay.enabled) -}}
    {{- $faults = append $faults "hubble.ui.enabled: needs hubble.relay.enabled true" -}}
  {{- end -}}
  {{- if and .hubble.ui.enabled .hubble.ui.ingress.enabled (empty .hubble.ui.ingress.hosts) -}}
    {{- $faults = append $faults "hubble.ui.ingress.hosts: is empty: give the name by which browsers find the page" -}}
  {{- end -}}
  {{- with .hubble.tls.auto -}}
    {{- if and .enabled (eq .method "certmanager") (not (and .certManagerIssuerRef.name .certManagerIssuerRef.kind)) -}}
      {{- $faults = append $faults "hubble.tls.auto.certManagerIssuerRef: needs name and kind of an issuer of cert-manager" -}}
    {{- end -}}
  {{- end -}}
  {{- /* Whether clients or servers are checked by the authority of that secret. */ -}}
  {{- $checked := dict "hubble.tls.server" true "hubble.metrics.tls.server" false "hubble.relay.tls.client" true "hubble.relay.tls.server" false "hubble.ui.tls.client" true -}}
  {{- range $path, $isChecked := $checked -}}
    {{- $certificate := get (include "apiary.value" (dict "values" $values "path" $path) | fromJson) "value" -}}
    {{- if ne (empty $certificate.cert) (empty $certificate.key) -}}
      {{- $faults = append $faults (printf "%s: needs cert and key, or neither" $path) -}}
    {{- else if and $certificate.cert $certificate.existingSecret -}}
      {{- $faults = append $faults (printf "%s.existingSecret: %s.cert has a value, too: leave one of them out" $path $path) -}}
    {{- else if and $certificate.cert $isChecked (not $values.tls.ca.cert) -}}
      {{- $faults = append $faults (printf "tls.ca.cert: is empty: %s.cert needs the certificate of its authority" $path) -}}
    {{- end -}}
  {{- end -}}
  {{- $metrics := .hubble.metrics.tls.server -}}
  {{- if and $metrics.cert $metrics.mtls.enabled (not $metrics.mtls.name) (not .tls.ca.cert) -}}
    {{- $faults = append $faults "tls.ca.cert: is empty: hubble.metrics.tls.server.mtls needs the authority of its clients" -}}
  {{- end -}}
  {{- if and .upgradeCompatibility (semverCompare "<1.12-0" .upgradeCompatibility) -}}
    {{- $faults = append $faults "upgradeCompatibility: defaults of versions before 1.12 are not kept: leave it out, and set the values that must not change" -}}
  {{- end -}}
  {{- range $key := list "agent" "operator" -}}
    {{- $extra := eq $key "agent" | ternary $values.extraEnv $values.operator.extraEnv -}}
    {{- range $extra -}}
      {{- if has .name (list "K8S_NODE_NAME" "CILIUM_K8S_NAMESPACE" "KUBERNETES_SERVICE_HOST" "KUBERNETES_SERVICE_PORT") -}}
        {{- $faults = append $faults (printf "%s: %s is set by the chart: leave it out" (eq $key "agent" | ternary "extraEnv" "operator.extraEnv") .name) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
  {{- if not (or .agent .operator.enabled) -}}
    {{- $faults = append $faults "agent: nothing is installed: set it or operator.enabled to true" -}}
  {{- end -}}
{{- end -}}
{{- with $faults -}}
{{- fail (printf "the values are refused:\n%s" (join "\n" .)) -}}
{{- end -}}
{{- end }}
