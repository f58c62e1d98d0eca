{{- /* Whether relay is installed. */ -}}
{{- define "apiary.hubbleRelay" -}}
{{- and .Values.agent .Values.hubble.enabled .Values.hubble.relay.enabled -}}
{{- end }}

{{- /* Whether the page of Hubble is installed. */ -}}
{{- define "apiary.hubbleUi" -}}
{{- and (eq (include "apiary.hubbleRelay" .) "true") .Values.hubble.ui.enabled -}}
{{- end }}

{{- /* The port of the service hubble-peer. */ -}}
{{- define "apiary.hubblePeerPort" -}}
{{- .Values.hubble.peerService.servicePort | default (ternary 443 80 .Values.hubble.tls.enabled) | int64 -}}
{{- end }}

{{- /* The file of relay's options. */ -}}
{{- define "apiary.hubbleRelayConfig" -}}
{{- $relay := .Values.hubble.relay -}}
{{- $folder := "/var/lib/hubble-relay/tls" -}}
{{- $peer := printf "hubble-peer.%s.svc.%s.:%s" .Release.Namespace .Values.hubble.peerService.clusterDomain (include "apiary.hubblePeerPort" .) -}}
{{- $data := dict
    "cluster-name" .Values.cluster.name
    "peer-service" $peer
    "listen-address" (printf "%s:%d" $relay.listenHost (int64 $relay.listenPort))
    "gops" $relay.gops.enabled
    "gops-port" (int64 $relay.gops.port | toString) -}}
{{- range $key, $value := dict "dial-timeout" "dialTimeout" "retry-timeout" "retryTimeout" "sort-buffer-len-max" "sortBufferLenMax" "sort-buffer-drain-timeout" "sortBufferDrainTimeout" -}}
  {{- with get $relay $value -}}{{- $_ := set $data $key . -}}{{- end -}}
{{- end -}}
{{- with $relay.pprof -}}
  {{- if .enabled -}}
    {{- $_ := set $data "pprof" true -}}
    {{- $_ := set $data "pprof-address" .address -}}
    {{- $_ := set $data "pprof-port" (int64 .port | toString) -}}
    {{- $_ := set $data "pprof-mutex-profile-fraction" (int64 .mutexProfileFraction | toString) -}}
    {{- $_ := set $data "pprof-block-profile-rate" (int64 .blockProfileRate | toString) -}}
  {{- end -}}
{{- end -}}
{{- with $relay.logOptions.format -}}{{- $_ := set $data "log-format" . -}}{{- end -}}
{{- with $relay.logOptions.level -}}{{- $_ := set $data "log-level" . -}}{{- end -}}
{{- if $relay.prometheus.enabled -}}{{- $_ := set $data "metrics-listen-address" (printf ":%d" (int64 $relay.prometheus.port)) -}}{{- end -}}
{{- if .Values.hubble.tls.enabled -}}
  {{- $_ := set $data "tls-hubble-client-cert-file" (printf "%s/client.crt" $folder) -}}
  {{- $_ := set $data "tls-hubble-client-key-file" (printf "%s/client.key" $folder) -}}
  {{- $_ := set $data "tls-hubble-server-ca-files" (printf "%s/hubble-server-ca.crt" $folder) -}}
{{- else -}}
  {{- $_ := set $data "disable-client-tls" true -}}
{{- end -}}
{{- if and .Values.hubble.tls.enabled $relay.tls.server.enabled -}}
  {{- $_ := set $data "tls-relay-server-cert-file" (printf "%s/server.crt" $folder) -}}
  {{- $_ := set $data "tls-relay-server-key-file" (printf "%s/server.key" $folder) -}}
  {{- if $relay.tls.server.mtls -}}
    {{- $_ := set $data "tls-relay-client-ca-files" (printf "%s/hubble-server-ca.crt" $folder) -}}
  {{- end -}}
{{- else -}}
  {{- $_ := set $data "disable-server-tls" true -}}
{{- end -}}
{{- toYaml $data -}}
{{- end }}

{{- /* The configuration of the web server of the page: its files, and the API of the backend below the base URL. */ -}}
{{- define "apiary.hubbleUiServer" -}}
{{- $ui := .Values.hubble.ui -}}
{{- $base := $ui.baseUrl -}}
server {
  listen 8081;
  {{- if $ui.frontend.server.ipv6.enabled }}
  listen [::]:8081;
  {{- end }}
  root /app;
  client_max_body_size 1G;
  location {{ $base }}api {
    {{- /* The slash at the end of the URL cuts the base off the path. */}}
    proxy_pass http://127.0.0.1:8090{{ ternary "" "/api" (eq $base "/") }};
    proxy_http_version 1.1;
    proxy_set_header Host $host;
    proxy_set_header X-Real-IP $remote_addr;
  }
  location /healthz {
    return 200;
  }
  location {{ $base }} {
    {{- if ne $base "/" }}
    rewrite ^{{ trimSuffix "/" $base }}(/.*)$ $1 break;
    sub_filter '<base href="/"/>' '<base href="{{ $base }}"/>';
    sub_filter_once on;
    {{- end }}
    try_files $uri $uri/ /index.html =404;
  }
}
{{- end }}

{{- /* A PodDisruptionBudget as a further document, if its values have it on: name (also the label k8s-app), budget. */ -}}
{{- define "apiary.podDisruptionBudget" -}}
{{- if .budget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "apiary.labels" .root | nindent 4 }}
spec:
  selector: {matchLabels: {k8s-app: {{ .name }}}}
  {{- if not (kindIs "invalid" .budget.minAvailable) }}
  minAvailable: {{ .budget.minAvailable }}
  {{- else }}
  maxUnavailable: {{ .budget.maxUnavailable }}
  {{- end }}
  {{- with .budget.unhealthyPodEvictionPolicy }}
  unhealthyPodEvictionPolicy: {{ . }}
  {{- end }}
{{- end }}
{{- end }}
