{{- /* A ServiceMonitor of Prometheus' operator for a service of the chart: name, selector (the labels of the service), port,
       monitor (the values), label (of the service, which series get), tls (whether metrics are served by TLS). */ -}}
{{- define "apiary.serviceMonitor" -}}
{{- $root := .root -}}
{{- $monitor := .monitor -}}
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    app.kubernetes.io/name: {{ .name }}
    {{- include "apiary.labels" $root | nindent 4 }}
    {{- with $monitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $monitor.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  selector:
    matchLabels:
      {{- toYaml .selector | nindent 6 }}
  namespaceSelector:
    matchNames:
    - {{ $root.Release.Namespace }}
  {{- with $monitor.jobLabel }}
  jobLabel: {{ . | quote }}
  {{- end }}
  targetLabels: [{{ .label }}]
  endpoints:
  - port: {{ .port }}
    path: /metrics
    honorLabels: true
    interval: {{ $monitor.interval | quote }}
    {{- with $monitor.scrapeTimeout }}
    scrapeTimeout: {{ . | quote }}
    {{- end }}
    {{- if .tls }}
    scheme: https
    {{- with $monitor.tlsConfig }}
    tlsConfig:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- end }}
    {{- with $monitor.relabelings }}
    relabelings:
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with $monitor.metricRelabelings }}
    metricRelabelings:
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
